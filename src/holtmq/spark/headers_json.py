"""Headers as JSON text in the notation of `table_json`: the form in which they reach the executors."""

from __future__ import annotations

import json

from holtmq.errors import InvalidValueError
from holtmq.table import FieldValue, describe
from holtmq.table_json import from_json


def read_headers(text: str) -> dict[str, FieldValue]:
    """Parse headers from JSON text in the notation of `table_json`. Raise InvalidValueError if that is not possible."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"headers: expected a JSON object, got {_shortened(text)} ({error})") from error
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise InvalidValueError(f"headers: expected a JSON object, got {describe(fields)}")
    if "{" in text[1:]:  # otherwise no value can use the notation for types that JSON lacks
        try:
            return {name: from_json(value, f"headers.{name}") for name, value in fields.items()}
        except RecursionError as error:
            raise InvalidValueError(f"headers: nested too deeply: {_shortened(text)}") from error
    return fields


def are_plain(text: str | bytes) -> bool:
    """Return whether headers are valid and add no routing keys. Text that is not UTF-8 is given as bytes."""
    if isinstance(text, bytes):
        return False
    try:
        fields = read_headers(text)
    except InvalidValueError:
        return False
    return "CC" not in fields and "BCC" not in fields


def _shortened(text: str, length: int = 60) -> str:
    return repr(text if len(text) <= length else text[:length] + "…")
