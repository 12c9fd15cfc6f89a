"""The shim, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import build_shim


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))
