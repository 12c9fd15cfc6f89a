"""JSON in pieces: a large answer is encoded in slices while it is sent, and is never in memory as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

from holtmq.management.slices import in_slices

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
