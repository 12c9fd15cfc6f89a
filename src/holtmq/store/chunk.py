"""A chunk of the log: many messages packed into two values, a header and their content.

A chunk is written once and read as a whole. It costs a store about as much as a single message, so a backlog is written and
read at the speed of large values. The header holds what is needed to find each message: ids, lengths, origins and checksums.
It has a checksum of its own. All numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, compress, repeat
from typing import NamedTuple, TypeAlias
from zlib import crc32

from holtmq.errors import StoreError

START = struct.Struct("<BBI")
VERSION = 1
CONSECUTIVE, ONE_ORIGIN = 1, 2
"""Flags: the ids are consecutive, so only the first one is there; all messages have the same origin."""
CHECKSUM_BYTES = 4
BODY_SIZE = struct.Struct(">11xQ")
"""Where the content of a message has the length of its body: in its content header (AMQP 0-9-1 §2.3.5.2)."""

Origin: TypeAlias = tuple[str, str]
"""Exchange and routing key."""
Ids: TypeAlias = Sequence[int]
"""Ids in ascending order: a range, or an array if some are missing in between."""


class DamagedChunkError(StoreError):
    """The header of a chunk cannot be read, so none of its messages can."""


class Unwritten:
    """Stands for the chunk of a message that the journal has not written yet."""


UNWRITTEN = Unwritten()


class Slice:
    """A chunk in one queue: which of its messages have left, and what is left."""

    __slots__ = ("expiries", "first_id", "gone", "last_id", "number", "priority", "returns", "size")

    def __init__(self, priority: int, first_id: int, last_id: int, number: int, size: int, gone: int = 0) -> None:
        self.priority = priority
        self.first_id = first_id
        self.last_id = last_id
        self.number = number
        self.size = size
        self.gone = gone
        """A bit for each message of the chunk that has left the queue."""
        self.expiries: Sequence[int] | None = None
        """If any message expires: when each one does, 0 for those that do not."""
        self.returns: dict[int, int] = {}
        """How often messages have returned to the queue, by id."""

    @property
    def state(self) -> tuple[int, int, int]:
        return self.gone, self.number, self.size


class Chunk:
    """A chunk that has messages in memory. There is one object for each chunk, so that all see the same state."""

    __slots__ = ("__weakref__", "id", "ids", "is_shared", "is_transient", "sizes", "slices")

    def __init__(self, chunk_id: int, ids: Ids, sizes: Sequence[int], *, is_shared: bool, is_transient: bool) -> None:
        self.id = chunk_id
        self.ids = ids
        self.sizes = sizes
        """Bytes of the bodies."""
        self.is_shared = is_shared
        self.is_transient = is_transient
        self.slices: dict[int, Slice] = {}
        """By queue, as far as they are known."""

    def remove(self, queue_id: int, message_ids: Sequence[int]) -> Slice:
        """Note that messages have left a queue, and return its slice."""
        piece = self.slices[queue_id]
        places = self._places(message_ids)
        added = mask_of(places) & ~piece.gone
        piece.gone |= added
        number = added.bit_count()
        piece.number -= number
        piece.size -= sum([self.sizes[place] for place in (places if number == len(places) else bits_of(added))])
        return piece

    def keep_only(self, queue_id: int, message_ids: Iterable[int]) -> Slice:
        """Note that all messages but these have left a queue, and return its slice."""
        kept = set(message_ids)
        return self.remove(queue_id, [message_id for message_id in self.ids if message_id not in kept])

    def _places(self, message_ids: Sequence[int]) -> Sequence[int]:
        ids = self.ids
        if isinstance(ids, range):
            first = ids.start
            return [message_id - first for message_id in message_ids]
        return [bisect_left(ids, message_id) for message_id in message_ids]


class LoggedMessage(NamedTuple):
    """A message of the log, as a broker reads it."""

    id: int
    origin: tuple[str, str]
    """Exchange and routing key."""
    content: bytes
    """Properties and body, as frames (wire/content.py)."""
    size: int
    """Bytes of the body."""
    expires_at: int | None
    attempts: int
    chunk: Chunk
    damage: str | None
    """What is wrong with it, if it is damaged."""


@dataclass(slots=True)
class Reading:
    """Messages that were read from the log, in order."""

    messages: list[LoggedMessage]
    after_id: int
    end_id: int
    """The next reading starts after this id."""
    is_plain: bool = True
    """Whether no message is damaged, expires, or has returned to its queue."""
    lost: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Chunks that cannot be unpacked: id, queue, number of messages, and what is wrong."""


class PageRequest(NamedTuple):
    """Asks for the next messages of a queue after an id: those of one chunk at least, and more up to the limits."""

    queue_id: int
    priority: int
    floor_id: int
    """No chunk that begins before this id has messages that are wanted."""
    after_id: int
    limit: int
    most_bytes: int


class PagePart(NamedTuple):
    """A chunk that was read, as far as a queue has it."""

    queue_id: int
    chunk_id: int
    first_id: int
    last_id: int
    number: int
    slice: Slice
    is_shared: bool
    is_transient: bool
    content: UnpackedChunk | DamagedChunkError


class Page(NamedTuple):
    """What was read for a request, before the broker knows of it. Each group of chunks covers ids of its own."""

    request: PageRequest
    groups: list[list[PagePart]]


def mask_of(places: Sequence[int]) -> int:
    """Return a number with these bits set. Acknowledgements mostly form long runs."""
    if not places:
        return 0
    lowest, highest = min(places), max(places)
    if highest - lowest + 1 == len(places):
        return ((1 << len(places)) - 1) << lowest
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask


def bits_of(mask: int) -> list[int]:
    """Return the places of the bits that are set."""
    return [place for place, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def pack(ids: Ids, contents: Sequence[bytes], origins: Sequence[Origin], origin_numbers: Sequence[int]) -> tuple[bytes, bytes]:
    """Return the header and the content of a chunk. Each message has the number of its origin."""
    is_consecutive, has_one_origin = ids[-1] - ids[0] == len(ids) - 1, len(origins) == 1
    flags = CONSECUTIVE * is_consecutive | ONE_ORIGIN * has_one_origin
    # A checksum includes those before it. The last one is thus that of the whole content, which is verified in one go.
    checksum = 0
    checksums = [checksum := crc32(content, checksum) for content in contents]
    parts = [
        START.pack(VERSION, flags, len(contents)),
        encode_numbers("Q", ids[:1] if is_consecutive else ids),
        encode_numbers("I", map(len, contents)),
        encode_numbers("I", checksums),
        b"" if has_one_origin else encode_numbers("I", origin_numbers),
        _only_origin(origins[0]) if has_one_origin else _json(origins),
    ]
    header = b"".join(parts)
    return header + crc32(header).to_bytes(CHECKSUM_BYTES, "little"), b"".join(contents)


@lru_cache(maxsize=64)
def _only_origin(origin: Origin) -> bytes:
    """Return the origins of a chunk that has one, which is mostly that of the chunk before."""
    return _json([origin])


def _json(origins: Sequence[Origin]) -> bytes:
    return json.dumps(origins, separators=(",", ":")).encode()


class UnpackedChunk:
    """The messages of a chunk as it was read."""

    __slots__ = ("_checksums", "_ends", "_numbers", "_origins", "contents", "ids", "is_intact", "sizes")

    def __init__(self, header: bytes, content: bytes) -> None:
        try:
            self._parse(header)
        except (ValueError, struct.error, TypeError) as error:
            raise DamagedChunkError(f"its header is damaged ({error})") from error
        self.is_intact = crc32(content) == self._checksums[-1]
        """Whether no message is damaged."""
        self.contents = [content[start:end] for start, end in zip([0, *self._ends], self._ends, strict=False)]
        if self.is_intact:
            self.sizes = array("I", [BODY_SIZE.unpack_from(one)[0] for one in self.contents])
        else:
            self.sizes = array(
                "I", [0 if self.damage(place) else BODY_SIZE.unpack_from(one)[0] for place, one in enumerate(self.contents)]
            )
        """Bytes of the bodies, 0 for a damaged message."""

    def _parse(self, header: bytes) -> None:
        body, checksum = header[:-CHECKSUM_BYTES], int.from_bytes(header[-CHECKSUM_BYTES:], "little")
        if crc32(body) != checksum:
            raise ValueError(f"its checksum is {crc32(body)}, expected {checksum}")
        version, flags, number = START.unpack_from(body)
        if version != VERSION:
            raise ValueError(f"it has version {version}, expected {VERSION}")
        at = START.size
        if flags & CONSECUTIVE:
            (first,) = decode_numbers("Q", body, at, 1)
            self.ids: Ids = range(first, first + number)
            at += 8
        else:
            self.ids = decode_numbers("Q", body, at, number)
            at += 8 * number
        self._ends = list(accumulate(decode_numbers("I", body, at, number)))
        self._checksums = decode_numbers("I", body, at + 4 * number, number)
        at += 8 * number
        self._numbers: Sequence[int] | None = None
        if not flags & ONE_ORIGIN:
            self._numbers = decode_numbers("I", body, at, number)
            at += 4 * number
        self._origins: list[Origin] = [(exchange, key) for exchange, key in json.loads(body[at:])]

    def origins(self) -> Sequence[Origin]:
        """Return the origin of each message."""
        if self._numbers is None:
            return self._origins * len(self.ids)
        return [self._origins[number] for number in self._numbers]

    def messages(self, chunk: Chunk, piece: Slice) -> list[LoggedMessage]:
        """Return the messages that a queue still has."""
        number, returns = len(self.ids), piece.returns
        expiries = [expiry or None for expiry in piece.expiries] if piece.expiries else repeat(None)
        attempts = [returns.get(message_id, 0) for message_id in self.ids] if returns else repeat(0)
        damage = repeat(None) if self.is_intact else [self.damage(place) for place in range(number)]
        values: Iterable[tuple[object, ...]] = zip(
            self.ids, self.origins(), self.contents, self.sizes, expiries, attempts, repeat(chunk), damage, strict=False
        )
        if piece.gone:
            left = ((1 << number) - 1) & ~piece.gone
            values = compress(values, [bit == "1" for bit in reversed(f"{left:0{number}b}")])
        return list(map(_as_logged, values))

    def place_of(self, message_id: int) -> int:
        return bisect_left(self.ids, message_id)

    def damage(self, place: int) -> str | None:
        """Return what is wrong with a message, or None if it is as it was written."""
        found, expected = crc32(self.contents[place], self._checksums[place - 1] if place else 0), self._checksums[place]
        return None if found == expected else f"its checksum is {found}, expected {expected}"

    def repack(self, places: Sequence[int]) -> tuple[bytes, bytes]:
        """Return header and content of a chunk with some of the messages."""
        numbers = self._numbers or [0] * len(self.ids)
        ids = array("Q", [self.ids[place] for place in places])
        return pack(ids, [self.contents[place] for place in places], self._origins, [numbers[place] for place in places])


_as_logged: Callable[[tuple[object, ...]], LoggedMessage] = partial(tuple.__new__, LoggedMessage)
"""Makes a message of its values. Its constructor takes three times as long, and a backlog has many (benchmarks/broker.py)."""


def encode_expiries(expiries: Iterable[int]) -> bytes:
    return encode_numbers("Q", expiries)


def decode_expiries(raw: bytes) -> Sequence[int]:
    return decode_numbers("Q", raw, 0, len(raw) // 8)


def encode_numbers(kind: str, numbers: Iterable[int]) -> bytes:
    """Return numbers as an array of this type code, little-endian."""
    values = array(kind, numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def decode_numbers(kind: str, raw: bytes, at: int, number: int) -> array[int]:
    """Read an array of this type code and length. Raise ValueError if it does not end within the header."""
    values = array(kind)
    end = at + number * values.itemsize
    if end > len(raw):
        raise ValueError(f"expected {number} numbers, got the end of the header")
    values.frombytes(raw[at:end])
    if sys.byteorder == "big":
        values.byteswap()
    return values
