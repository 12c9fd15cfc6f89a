"""Encoded properties (AMQP 0-9-1 §4.2.6): read as the values of columns, taken apart, and put together again.

The columns cannot represent everything: the width of a number in a header, a text that is not UTF-8, a time in milliseconds.
A property that nobody changes therefore keeps its bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from holtmq.errors import FrameError, InvalidValueError
from holtmq.table_json import table_to_json, to_json
from holtmq.wire.content import NAMES, encode_properties, present_properties
from holtmq.wire.tables import (
    LAST_SECOND,
    decode_table,
    drop_field,
    encode_table,
    encode_value,
    join_table,
    long_string,
    short_string,
    split_table,
)

INVALID_HEADERS = "$bytes"
REPLAY_HEADER = "x-holtmq-replay"
UNSET: tuple[Any, ...] = (None,) * len(NAMES)
"""The values of properties of which none is set."""
KEPT = 10_000
_PLACES = {name: place for place, name in enumerate(NAMES)}
_SIZES = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
TEXTS = frozenset(NAMES) - _SIZES.keys() - {"headers"}


class PropertyValues(dict[bytes, tuple[Any, ...]]):
    """Caches the values of properties, in the order of `NAMES`, by their bytes."""

    def __missing__(self, raw: bytes) -> tuple[Any, ...]:
        if len(self) >= KEPT:
            self.clear()
        self[raw] = values = _read(raw)
        return values


def _read(raw: bytes) -> tuple[Any, ...]:
    """Return the values of all properties in order: the same as `Properties`, at a third of the cost.

    If each message has its own id, this is half of the source's cost in Python (benchmarks/pipeline.py).
    """
    values: list[Any] = [None] * len(NAMES)
    at = 2
    try:
        for name in present_properties(raw[:2]):
            place = _PLACES[name]
            if name in TEXTS:
                end = at + 1 + raw[at]
                values[place] = raw[at + 1 : end].decode("utf-8", "replace")
                at = end
            elif name == "headers":
                values[place] = _headers_text(raw, at)
                at += 4 + int.from_bytes(raw[at : at + 4], "big")
            elif name == "timestamp":
                seconds = int.from_bytes(raw[at : at + 8], "big")
                # a Spark timestamp cannot represent years after 9999, which a time in milliseconds would be in
                values[place] = datetime.fromtimestamp(seconds, UTC) if seconds <= LAST_SECOND else None
                at += 8
            else:
                values[place] = raw[at]
                at += 1
    except (IndexError, FrameError):  # no broker should deliver such a message, but a stream must not stop at it
        return UNSET
    return tuple(values) if at == len(raw) else UNSET


def _headers_text(raw: bytes, at: int) -> str:
    """Return a table as JSON. An invalid table, such as one whose names are not UTF-8, is returned as its bytes."""
    try:
        table, _ = decode_table(raw, at)
    except FrameError:
        end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
        return json.dumps([INVALID_HEADERS, base64.b64encode(raw[at:end]).decode()])
    return json.dumps(table_to_json(table), ensure_ascii=False)


def split_properties(raw: bytes) -> dict[str, bytes]:
    """Return the encoded value of each property that is set."""
    fields: dict[str, bytes] = {}
    at = 2
    for name in present_properties(raw[:2]):
        if name in TEXTS:
            size = 1 + int.from_bytes(raw[at : at + 1], "big")
        elif name == "headers":
            size = 4 + int.from_bytes(raw[at : at + 4], "big")
        else:
            size = _SIZES[name]
        fields[name] = raw[at : at + size]
        at += size
    if at != len(raw):
        raise FrameError(f"expected the properties to end after {at} bytes, got {len(raw)}")
    return fields


def join_properties(fields: Mapping[str, bytes]) -> bytes:
    """Return the encoding of properties, given by their encoded values."""
    flags = sum(0x8000 >> _PLACES[name] for name in fields)
    return flags.to_bytes(2, "big") + b"".join([fields[name] for name in NAMES if name in fields])


def encode_property(name: str, value: object) -> bytes:
    """Encode the value of one property. Raise InvalidValueError for a number that does not fit into a byte."""
    if _SIZES.get(name) == 1 and not (isinstance(value, int) and 0 <= value <= 255):
        raise InvalidValueError(f"{name}: expected a number from 0 to 255, got {value!r}")
    return encode_properties({name: value})[2:]


def encode_headers(headers: Mapping[str, Any], received: bytes | None) -> bytes:
    """Encode headers. A header that has the same value in the table that was received keeps its type."""
    if received is None:
        return encode_table(headers)
    try:
        values, encoded = decode_table(received)[0], split_table(received)
    except FrameError:
        return encode_table(headers)
    return join_table(
        {
            name: encoded[name] if name in values and _notation(values[name]) == _notation(value) else encode_value(value)
            for name, value in headers.items()
        }
    )


def _notation(value: Any) -> str:
    """Return a text that is equal for equal values only: to Python, 1, 1.0 and True are equal."""
    return json.dumps(to_json(value))


def is_invalid(headers: object) -> bool:
    """Return whether the value of the column is a table that AMQP does not allow, as its bytes."""
    return isinstance(headers, str) and headers.startswith(f'["{INVALID_HEADERS}"')


def replay_mark(replay_id: str) -> bytes:
    """Return the encoded header of a replay."""
    return short_string(REPLAY_HEADER) + encode_value(replay_id)


def mark_headers(headers: bytes, mark: bytes) -> bytes:
    """Add the header of a replay to an encoded table, and remove that of an earlier one."""
    others = drop_field(headers, REPLAY_HEADER) if REPLAY_HEADER.encode() in headers else headers
    return long_string(others[4:] + mark)
