"""The codec for field tables (AMQP 0-9-1 §4.2.5.5, with the type letters that RabbitMQ and its clients use).

It is written by hand, because existing libraries lose data that a broker must keep: they cut long keys, read late timestamps
as milliseconds, and copy the remaining bytes for every value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal

from holtmq.errors import FrameError, InvalidValueError
from holtmq.table import SHORT_STRING_BYTES, FieldValue, describe

DEEPEST = 32
"""Maximum nesting of tables and arrays."""
LAST_SECOND = 253_402_300_799  # the end of the year 9999, where Python's calendar ends

_LONG = struct.Struct(">I")
_NUMBERS: dict[int, tuple[struct.Struct, Callable[..., FieldValue]]] = {
    ord(letter): (struct.Struct(">" + code), kind)
    for letter, code, kind in (
        ("t", "B", bool), ("b", "b", int), ("B", "B", int), ("s", "h", int), ("u", "H", int), ("I", "i", int), ("i", "I", int),
        ("l", "q", int), ("L", "q", int), ("f", "f", float), ("d", "d", float),
    )
}  # fmt: skip


def decode_table(data: bytes, at: int = 0) -> tuple[dict[str, FieldValue], int]:
    """Decode the table at an offset. Return it with the offset after it."""
    return _table(data, at, DEEPEST)


def split_table(data: bytes, at: int = 0) -> dict[str, bytes]:
    """Return the encoded fields of a table, type letters included, so that single fields can be changed."""
    return {key: data[value_at:after] for key, _, value_at, after in _fields(data, at)}


def drop_field(table: bytes, name: str) -> bytes:
    """Return an encoded table without the fields of this name. All others stay as they are, even if a name occurs twice."""
    return long_string(b"".join([table[start:after] for key, start, _, after in _fields(table, 0) if key != name]))


def _fields(data: bytes, at: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield the key of each field, and where the field starts, where its value starts, and where both end."""
    at, end = _extent(data, at)
    while at < end:
        key, value_at = decode_short_string(data, at)
        _, after = _value(data, value_at, DEEPEST)
        yield key, at, value_at, after
        at = after
    if at != end:
        raise _overrun("table", end, at)


def raw_fields(data: bytes, at: int = 0) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield the name of each field of a table, and where the field starts, where its value starts, and where both end.

    Nothing is decoded, so that names, also those in nested tables, need not be UTF-8.
    """
    at, end = _extent(data, at)
    while at < end:
        value_at = at + 1 + data[at]
        after = _value_end(data, value_at)
        yield data[at + 1 : value_at], at, value_at, after
        at = after
    if at != end:
        raise _overrun("table", end, at)


def _value_end(data: bytes, at: int) -> int:
    if at >= len(data):
        raise _cut_off("value", at)
    letter = data[at]
    if letter in _NUMBERS:
        return at + 1 + _NUMBERS[letter][0].size
    match chr(letter):
        case "S" | "x" | "F" | "A":
            return _extent(data, at + 1)[1]
        case "T":
            return at + 9
        case "D":
            return at + 6
        case "V":
            return at + 1
        case other:
            raise FrameError(f"expected a field type of AMQP at byte {at}, got {other!r}")


def decode_value(data: bytes, at: int) -> tuple[FieldValue, int]:
    """Decode the value at an offset, with its type letter. Return it with the offset after it."""
    return _value(data, at, DEEPEST)


def encode_table(table: Mapping[str, FieldValue]) -> bytes:
    """Encode a table with its length."""
    return join_table({key: encode_value(value) for key, value in table.items()})


def join_table(fields: Mapping[str, bytes]) -> bytes:
    """Encode a table of encoded fields, as `split_table` returns them."""
    return long_string(b"".join(short_string(key) + value for key, value in fields.items()))


def short_string(text: str, errors: str = "strict") -> bytes:
    """Encode a short string. Raise InvalidValueError if it is too long. `errors` is that of `str.encode`."""
    encoded = text.encode("utf-8", errors)
    if len(encoded) > SHORT_STRING_BYTES:
        raise InvalidValueError(
            f"expected a short string of at most {SHORT_STRING_BYTES} bytes, got {len(encoded)}: {text[:40]!r}"
        )
    return bytes((len(encoded),)) + encoded


def long_string(content: bytes) -> bytes:
    """Encode a long string."""
    return _LONG.pack(len(content)) + content


def decode_short_string(data: bytes, at: int, errors: str = "strict") -> tuple[str, int]:
    """Decode the short string at an offset. Return it with the offset after it. `errors` is that of `bytes.decode`."""
    try:
        after = at + 1 + data[at]
        if after > len(data):
            raise _cut_off("short string", at)
        return data[at + 1 : after].decode("utf-8", errors), after
    except IndexError:
        raise _cut_off("short string", at) from None
    except UnicodeDecodeError as error:
        raise FrameError(f"expected a short string in UTF-8 at byte {at}, got {data[at + 1 : after][:40]!r}") from error


def decode_long_string(data: bytes, at: int) -> tuple[bytes, int]:
    """Decode the long string at an offset. Return it with the offset after it."""
    start, end = _extent(data, at)
    return data[start:end], end


def encode_value(value: FieldValue) -> bytes:
    """Encode a field value with its type letter."""
    match value:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int() | float() | Decimal() | datetime():
            return _encode_number(value)
        case str():
            return _encode_text(value)
        case bytes():
            return b"x" + long_string(value)
        case list() | tuple():
            return b"A" + long_string(b"".join(map(encode_value, value)))
        case Mapping():
            return b"F" + encode_table(value)
        case _:
            raise TypeError(f"no AMQP type for {describe(value)}")


def _encode_number(value: int | float | Decimal | datetime) -> bytes:
    match value:
        case int() if -(2**31) <= value < 2**31:
            return b"I" + value.to_bytes(4, "big", signed=True)
        case int():
            return b"l" + value.to_bytes(8, "big", signed=True)
        case float():
            return b"d" + struct.pack(">d", value)
        case datetime():
            return b"T" + int(value.timestamp()).to_bytes(8, "big", signed=True)
        case _:
            return _encode_decimal(value)


def _table(data: bytes, at: int, depth: int) -> tuple[dict[str, FieldValue], int]:
    table: dict[str, FieldValue] = {}
    at, end = _nested(data, at, depth)
    while at < end:
        key, at = decode_short_string(data, at)
        table[key], at = _value(data, at, depth)
    if at != end:
        raise _overrun("table", end, at)
    return table, end


def _value(data: bytes, at: int, depth: int) -> tuple[FieldValue, int]:
    try:
        letter = data[at]
        if letter in _NUMBERS:
            number, kind = _NUMBERS[letter]
            return kind(number.unpack_from(data, at + 1)[0]), at + 1 + number.size
    except (IndexError, struct.error):
        raise _cut_off("value", at) from None
    at += 1
    match chr(letter):
        case "S":
            content, after = decode_long_string(data, at)
            return _text_or_bytes(content), after
        case "x":
            return decode_long_string(data, at)
        case "F":
            return _table(data, at, depth - 1)
        case "A":
            return _array(data, at, depth - 1)
        case "T":
            return _timestamp(_integer(data, at, 8)), at + 8
        case "D":
            return Decimal(_integer(data, at + 1, 4)).scaleb(-data[at]), at + 5
        case "V":
            return None, at
        case other:
            raise FrameError(f"expected a field type of AMQP at byte {at - 1}, got {other!r}")


def _array(data: bytes, at: int, depth: int) -> tuple[list[FieldValue], int]:
    items = []
    at, end = _nested(data, at, depth)
    while at < end:
        item, at = _value(data, at, depth)
        items.append(item)
    if at != end:
        raise _overrun("array", end, at)
    return items, end


def _extent(data: bytes, at: int) -> tuple[int, int]:
    """Return where a value with a length prefix starts and ends."""
    start = at + 4
    if start > len(data):
        raise _cut_off("length", at)
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise FrameError(f"expected at most {len(data) - start} more bytes, got a length of {end - start} at byte {at}")
    return start, end


def _nested(data: bytes, at: int, depth: int) -> tuple[int, int]:
    if depth < 0:
        raise FrameError(f"expected tables and arrays nested at most {DEEPEST} deep, got more")
    return _extent(data, at)


def _integer(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise _cut_off("number", at)
    return int.from_bytes(data[at : at + size], "big", signed=True)


def _timestamp(seconds: int) -> FieldValue:
    # A time beyond Python's calendar is kept as a number.
    return datetime.fromtimestamp(seconds, UTC) if 0 <= seconds <= LAST_SECOND else seconds


def _text_or_bytes(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _encode_text(text: str) -> bytes:
    # The embedded library and JSON accept half of a surrogate pair, which UTF-8 cannot encode. It is replaced.
    return b"S" + long_string(text.encode(errors="replace"))


def _encode_decimal(value: Decimal) -> bytes:
    """Encode a decimal, as text if it exceeds AMQP's: 32 bits and at most 255 decimal places."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -255 or value.adjusted() > 9:
        return _encode_text(str(value))
    scale = max(-exponent, 0)
    unscaled = int(value.scaleb(scale))
    if not -(2**31) <= unscaled < 2**31:
        return _encode_text(str(value))
    return b"D" + bytes((scale,)) + unscaled.to_bytes(4, "big", signed=True)


def _overrun(what: str, end: int, at: int) -> FrameError:
    return FrameError(f"expected the {what} to end at byte {end}, got a value up to byte {at}")


def _cut_off(what: str, at: int) -> FrameError:
    return FrameError(f"expected a {what} at byte {at}, got the end of the data")
