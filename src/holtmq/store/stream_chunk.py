"""A chunk of a stream: many messages packed into two values, a header and their bodies.

A reader of a stream wants whole messages in order, and a stream keeps them for long. So a chunk has no frames, and what many
messages share is there once: origins and properties. A column of equal numbers, such as the lengths of bodies of one size,
takes nine bytes. All numbers are little-endian. The checksums work as in a chunk of the log (`chunk.py`).
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from zlib import crc32

from holtmq.store.chunk import CHECKSUM_BYTES, DamagedChunkError, Origin, decode_numbers, encode_numbers
from holtmq.store.stream_port import StreamEntry, StreamMessage

START = struct.Struct("<BIQQ")
"""Version, number of messages, first offset, and the time of the first message."""
VERSION = 1
EQUAL = 0
"""Instead of the width of a column: all its numbers are the same."""
WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def pack_stream_chunk(first_offset: int, entries: Sequence[StreamEntry], times: Sequence[int]) -> tuple[bytes, bytes]:
    """Return the header and the content of a chunk. `times` are ascending."""
    bodies = [entry.body for entry in entries]
    # A checksum includes those before it. The last one is thus that of the whole content, which is verified in one go.
    checksum = 0
    checksums = [checksum := crc32(body, checksum) for body in bodies]
    origins: dict[Origin, int] = {}
    properties: dict[bytes, int] = {}
    origin_numbers = [origins.setdefault(entry[:2], len(origins)) for entry in entries]
    property_numbers = [properties.setdefault(entry[2], len(properties)) for entry in entries]
    first_at = times[0]
    texts = json.dumps(list(origins), separators=(",", ":")).encode()
    parts = [
        START.pack(VERSION, len(entries), first_offset, first_at),
        _column([len(body) for body in bodies]),
        encode_numbers("I", checksums),
        _column([time - first_at for time in times]),
        _column(origin_numbers),
        _column(property_numbers),
        len(properties).to_bytes(4, "little"),
        _column([len(raw) for raw in properties]),
        *properties,
        texts,
    ]
    header = b"".join(parts)
    return header + crc32(header).to_bytes(CHECKSUM_BYTES, "little"), b"".join(bodies)


def _column(numbers: Sequence[int]) -> bytes:
    most = max(numbers)
    if min(numbers) == most:
        return bytes((EQUAL,)) + most.to_bytes(8, "little")
    width = next(width for width in WIDTHS if most < 1 << 8 * width)
    return bytes((width,)) + encode_numbers(WIDTHS[width], numbers)


class StreamChunk:
    """A chunk as it was read. Bodies are cut out when they are asked for, so that many readers can share it."""

    __slots__ = (
        "__weakref__", "_checksums", "_content", "_ends", "_first_at", "_lengths", "_origin_numbers", "_property_numbers",
        "_times", "damage", "first_offset", "is_intact", "number", "origins", "properties",
    )  # fmt: skip

    def __init__(self, first_offset: int, number: int, header: bytes, content: bytes) -> None:
        self.first_offset = first_offset
        self.number = number
        self.damage: str | None = None
        """What is wrong with the chunk if none of its messages can be read."""
        self._content = content
        self.is_intact = False
        """Whether no message is damaged."""
        try:
            self._parse(header)
        except (ValueError, struct.error, TypeError, KeyError) as error:
            self.damage = f"its header is damaged ({error})"
            return
        self.is_intact = crc32(content) == self._checksums[-1]

    @property
    def next_offset(self) -> int:
        """The offset after the last message."""
        return self.first_offset + self.number

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory, measured and rounded up."""
        if self.damage is not None:
            return len(self._content)
        shared = sum(map(len, self.properties)) + 200 * (len(self.properties) + len(self.origins))
        return len(self._content) + 100 * self.number + shared

    def _parse(self, header: bytes) -> None:
        body, checksum = header[:-CHECKSUM_BYTES], int.from_bytes(header[-CHECKSUM_BYTES:], "little")
        if crc32(body) != checksum:
            raise ValueError(f"its checksum is {crc32(body)}, expected {checksum}")
        version, number, first_offset, first_at = START.unpack_from(body)
        if version != VERSION:
            raise ValueError(f"it has version {version}, expected {VERSION}")
        if (first_offset, number) != (self.first_offset, self.number):
            raise ValueError(
                f"it has {number} messages from offset {first_offset}, expected {self.number} from {self.first_offset}"
            )
        self._lengths, at = _read_column(body, START.size, number)
        self._ends: Sequence[int] = _ends_of(self._lengths)
        self._checksums: Sequence[int] = decode_numbers("I", body, at, number)
        self._first_at = first_at
        self._times, at = _read_column(body, at + 4 * number, number)
        self._origin_numbers, at = _read_column(body, at, number)
        self._property_numbers, at = _read_column(body, at, number)
        distinct = int.from_bytes(body[at : at + 4], "little")
        lengths, at = _read_column(body, at + 4, distinct)
        ends = list(accumulate(lengths, initial=at))
        self.properties = [body[start:end] for start, end in pairwise(ends)]
        """The distinct properties of its messages, encoded."""
        self.origins: list[Origin] = [(exchange, key) for exchange, key in json.loads(body[ends[-1] :])]

    def place_from(self, timestamp_ms: int) -> int:
        """Return the offset of the first message at or after a time."""
        if self.damage is not None:
            return self.first_offset
        return self.first_offset + bisect_left(self._times, timestamp_ms - self._first_at)

    def messages(self, offset: int = 0, limit: int | None = None) -> Iterator[StreamMessage]:
        """Yield up to `limit` messages from an offset on. Those that are damaged are left out."""
        if self.damage is not None:
            return
        first = max(0, offset - self.first_offset)
        end = self.number if limit is None else min(self.number, first + limit)
        for place in range(first, end):
            if self.is_intact or self.damage_of(place) is None:
                yield StreamMessage(
                    self.first_offset + place,
                    self._first_at + self._times[place],
                    *self.origin(place),
                    self.raw_properties(place),
                    self.body(place),
                )

    def entries(self) -> list[StreamEntry]:
        """Return all messages, to be packed again. Raise DamagedChunkError if one is damaged."""
        if not self.is_intact:
            raise DamagedChunkError(self.damage or "a message is damaged")
        return [StreamEntry(*message[2:], message.timestamp_ms) for message in self.messages()]

    @property
    def is_plain(self) -> bool:
        """Whether all messages are intact, and have the same origin and properties."""
        return self.is_intact and len(self.origins) == len(self.properties) == 1

    def bodies_of_one_length(self, place: int, limit: int) -> tuple[bytes, ...] | None:
        """Return the bodies of up to `limit` messages from a place on, or None if they differ in length.

        They are cut out without a step in Python for each (benchmarks/streams.py).
        """
        lengths = self._lengths[place : place + limit]
        length, number = lengths[0], len(lengths)
        if lengths.count(length) < number:
            return None
        return struct.unpack_from(f"{length}s" * number, self._content, self._ends[place])

    def body(self, place: int) -> bytes:
        ends = self._ends
        return self._content[ends[place] : ends[place + 1]]

    def raw_properties(self, place: int) -> bytes:
        return self.properties[self._property_numbers[place]]

    def origin(self, place: int) -> Origin:
        return self.origins[self._origin_numbers[place]]

    def damage_of(self, place: int) -> str | None:
        """Return what is wrong with a message, or None if it is as it was written."""
        if self.damage is not None:
            return self.damage
        found, expected = crc32(self.body(place), self._checksums[place - 1] if place else 0), self._checksums[place]
        return None if found == expected else f"its checksum is {found}, expected {expected}"


def _read_column(raw: bytes, at: int, number: int) -> tuple[Sequence[int], int]:
    """Return the numbers of a column, and where it ends."""
    width = raw[at : at + 1]
    if width == b"\0":
        (value,) = decode_numbers("Q", raw, at + 1, 1)
        return [value] * number, at + 9
    kind = WIDTHS[width[0]]
    return decode_numbers(kind, raw, at + 1, number), at + 1 + width[0] * number


def _ends_of(lengths: Sequence[int]) -> Sequence[int]:
    """Return where the pieces of a chunk end. Those of one length take no step for each (benchmarks/streams.py)."""
    first, number = lengths[0], len(lengths)
    if first and lengths.count(first) == number:
        return range(0, first * number + 1, first)
    return list(accumulate(lengths, initial=0))
