"""The keywords of `declare_stream` as AMQP arguments, which keep their AMQP meaning."""

from __future__ import annotations

from collections.abc import Mapping

from holtmq.errors import InvalidValueError
from holtmq.queueing.argument_values import is_integer
from holtmq.queueing.stream_rules import STREAM
from holtmq.table import FieldValue, describe


def stream_arguments(
    arguments: Mapping[str, FieldValue] | None, *, max_age_s: int | None = None, max_bytes: int | None = None
) -> dict[str, FieldValue]:
    """Return the arguments of a queue of type stream."""
    if max_age_s is not None and (not is_integer(max_age_s) or max_age_s < 1):
        raise InvalidValueError(f"max_age_s must be an integer of at least 1, got {describe(max_age_s)}")
    given: dict[str, FieldValue] = {
        "x-queue-type": STREAM,
        "x-max-age": None if max_age_s is None else f"{max_age_s}s",
        "x-max-length-bytes": max_bytes,
    }
    return {**(arguments or {}), **{name: value for name, value in given.items() if value is not None}}
