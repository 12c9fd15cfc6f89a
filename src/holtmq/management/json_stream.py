"""JSON in pieces: a large answer is encoded in slices while it is sent, and a large document is read entry by entry.

To encode or decode the definitions of a large broker in one call would take orjson a tenth of a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

from holtmq.management.slices import in_slices
from holtmq.steps import Steps

DECODER = json.JSONDecoder()
WHITESPACE = re.compile(r"[ \t\n\r]*")
HELD_BYTES = 256 * 1024
"""An answer up to this size is sent as a whole, with its length."""


def pieces_of(value: Any) -> Iterator[bytes]:
    """Yield the text of a value. A list or an iterator becomes an array, also as a field of the outermost object."""
    if isinstance(value, list | Iterator):
        yield from _array(value)
    elif isinstance(value, dict) and any(isinstance(field, list | Iterator) for field in value.values()):
        for place, (name, field) in enumerate(value.items()):
            yield (b"," if place else b"{") + orjson.dumps(name) + b":"
            yield from pieces_of(field) if isinstance(field, list | Iterator) else (_encoded(field),)
        yield b"}"
    else:
        yield _encoded(value)


def _array(items: Iterable[Any]) -> Iterator[bytes]:
    separator = b"["
    for item in items:
        yield separator + _encoded(item)
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


def _encoded(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def parse(content: bytes) -> Steps[Any]:
    """Parse a document; raise `JSONDecodeError` if it is invalid. The arrays of a large object are read entry by entry."""
    if len(content) <= HELD_BYTES or not content.startswith(b"{") or content[1:].lstrip().startswith(b"}"):
        return orjson.loads(content)
    text, found = content.decode(), dict[str, Any]()
    at = 0
    while not at or text[at] == ",":
        name, at = _value(text, _next(text, at + 1, '"'))
        at = _next(text, at, ":") + 1
        found[name], at = (yield from _entries(text, _next(text, at))) if text[_next(text, at)] == "[" else _value(text, at)
        at = _next(text, at, ",}")
    _next(text, at + 1, "")
    return found


def _entries(text: str, at: int) -> Steps[tuple[list[Any], int]]:
    """Read an array that starts at this place. Return it and the place behind it."""
    found: list[Any] = []
    if text[_next(text, at + 1)] == "]":
        return found, _next(text, at + 1) + 1
    while text[at] != "]":
        value, at = _value(text, at + 1)
        found.append(value)
        at = _next(text, at, ",]")
        yield
    return found, at + 1


def _value(text: str, at: int) -> tuple[Any, int]:
    """Read a value. The standard library finds its end; orjson decides what is valid, here as everywhere."""
    start = _next(text, at)
    try:
        end = DECODER.raw_decode(text, start)[1]
    except json.JSONDecodeError as error:
        raise orjson.JSONDecodeError(error.msg, text, error.pos) from error
    return orjson.loads(text[start:end]), end


def _next(text: str, at: int, expected: str | None = None) -> int:
    """Return the place of the next character that is not whitespace. The empty string expects the end of the text."""
    found = WHITESPACE.match(text, at)
    place = found.end() if found is not None else at
    character = text[place : place + 1]
    if expected is not None and (character not in expected or bool(character) != bool(expected)):
        raise orjson.JSONDecodeError(f"expected {' or '.join(expected) or 'the end'}", text, place)
    if expected is None and not character:
        raise orjson.JSONDecodeError("unexpected end of data", text, place)
    return place


async def streamed(pieces: Iterable[bytes], media_type: str = "application/json") -> Response:
    """Return a response with this content. An error in the first `HELD_BYTES` is raised here."""
    slices = in_slices(pieces)
    held = bytearray()
    async for some in slices:
        held += b"".join(some)
        if len(held) > HELD_BYTES:
            return StreamingResponse(_follow(bytes(held), slices), headers={"content-type": media_type})
    return Response(bytes(held), headers={"content-type": media_type})


async def _follow(held: bytes, slices: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    yield held
    async for some in slices:
        yield b"".join(some)
