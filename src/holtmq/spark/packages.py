"""Optional packages: imported when they are needed, with an error that says how to install them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holtmq.errors import HoltmqError


class MissingPackageError(HoltmqError):
    """An optional package is not installed."""


def require_package(name: str, what: str, extra: str) -> Any:
    """Import a package that `what` needs, and that the extra of this name includes. Raise MissingPackageError without it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs the package {name}, which is not installed: install it with pip install 'holtmq[{extra}]'"
        ) from error
