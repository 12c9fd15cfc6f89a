"""The options that say where to start reading a stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holtmq.errors import InvalidValueError
from holtmq.queueing.stream_rules import parse_age

PLACES = ("first", "last")


def start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --offset and --from, of which one can be given."""
    offset = click.option(
        "--offset", metavar="OFFSET", help="First message of a stream to read: first, last or an offset (default: first)."
    )
    since = click.option(
        "--from", "since", metavar="TIME",
        help="Time of the first message of a stream to read (local, unless it has a time zone), or its age, such as 30m or 7D.",
    )  # fmt: skip
    return offset(since(command))


def chosen_start(offset: str | None, since: str | None) -> Any:
    """Return where to start: first, last, an offset or a time."""
    if offset is not None and since is not None:
        raise click.UsageError("expected --offset or --from, got both")
    if since is not None:
        return _moment(since)
    if offset is None or offset in PLACES:
        return offset or "first"
    if not (offset.isascii() and offset.isdigit()):
        raise click.BadParameter(f"expected first, last or an offset, got {offset!r}", param_hint="--offset")
    return int(offset)


def _moment(text: str) -> datetime:
    with suppress(InvalidValueError, OverflowError):
        return datetime.now(UTC) - timedelta(milliseconds=parse_age(text, "--from"))
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        expected = "expected a time such as 2026-01-31T12:00 or an interval such as 1h"
        raise click.BadParameter(f"{expected}, got {text!r}", param_hint="--from") from error
