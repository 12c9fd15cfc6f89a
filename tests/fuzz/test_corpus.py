"""The stored inputs of the fuzz targets, among them every input that failed once."""

from __future__ import annotations

import logging

import pytest

from holtmq.wire import tables as wire_tables
from tests.fuzz.targets import CORPUS, TARGETS, inputs
from tests.fuzz.values import tables

MOST_CORPUS_BYTES = 300_000


@pytest.mark.parametrize("name", TARGETS)
def test_stored_inputs_pass(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for path in inputs(name):
        try:
            TARGETS[name](path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{name} fails with {path}") from error
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_target_reports_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_tables, "_text_or_bytes", lambda content: content.decode())
    with pytest.raises(UnicodeDecodeError):
        tables(b"\x01aS\x00\x00\x00\x01\xff")


def test_the_corpus_is_small_and_has_inputs_for_every_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert all(map(inputs, TARGETS))
    assert sum(path.stat().st_size for name in TARGETS for path in inputs(name)) <= MOST_CORPUS_BYTES
