"""What a WAL left behind by a crash has lost (https://www.sqlite.org/fileformat2.html#walformat).

SQLite applies a WAL up to the first frame whose checksum does not match, and silently ignores the rest. Normally nothing
follows but remains of earlier use, which carry other salts. Commits after that frame with the salts of the WAL's header were
written by this use of it, so they are lost, unless they had been copied to the database before, or were never confirmed: a
commit that fails with an error, or that is interrupted by a power failure, looks the same.

Not known at all: frames that were cut off at the end of the WAL, and a WAL of another HoltMQ database.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
MAGIC_LITTLE_ENDIAN, MAGIC_BIG_ENDIAN = 0x377F0682, 0x377F0683
PAGE_SIZES = tuple(1 << bits for bits in range(9, 17))
USUAL_PAGE_SIZE = 4096
DATABASE_MAGIC = b"SQLite format 3\0"
APPLICATION_ID_AT = 68
NO_APPLICATION_ID = 0


class Checksum(NamedTuple):
    """SQLite's running checksum over pairs of 32-bit words."""

    first: int = 0
    second: int = 0

    def over(self, content: bytes, byte_order: str) -> Checksum:
        first, second = self
        words = struct.unpack(f"{byte_order}{len(content) // 4}I", content)
        for one, other in zip(words[::2], words[1::2], strict=True):
            first = (first + one + second) & 0xFFFFFFFF
            second = (second + other + first) & 0xFFFFFFFF
        return Checksum(first, second)


@dataclass(frozen=True, slots=True)
class WalScan:
    """The commits in a WAL, by the headers of its frames alone. Frames are counted from 1."""

    path: str
    page_size: int
    byte_order: str
    is_header_sound: bool
    salts: bytes
    commits: tuple[int, ...]
    """Frames that end a transaction and belong to the current use of the WAL."""
    application_id: int | None
    """That of the database according to the last frame of its first page, if there is one."""

    def damage(self, applied: int) -> str | None:
        """Return what is lost if SQLite has applied this number of frames, or None if nothing is."""
        lost = sum(1 for frame in self.commits if frame > applied)
        if not lost:
            return None
        if lost == 1 and self.is_header_sound:
            return (
                f"{self.path}: the last of its {len(self.commits)} commits is incomplete at frame "
                f"{self._damaged_frame(applied)}, and is ignored. If the process or the machine stopped in the middle of it, "
                "it was never confirmed, and nothing is lost"
            )
        place = f"at frame {self._damaged_frame(applied)}" if self.is_header_sound else "in its header"
        return (
            f"{self.path} is damaged {place}: {lost} of its {len(self.commits)} commits cannot be read. They are lost, unless "
            "the power failed before they were confirmed, or they are in the file already; what was written before is intact"
        )

    def is_foreign(self, database: str, application_id: int) -> bool:
        """Return whether SQLite would apply changes to a database with another application id.

        A page that a power cut has torn may look like that, too. Only then are the checksums computed, which takes a while.
        Before a new database gets its application id, both its file and its WAL have none.
        """
        if self.application_id in (None, application_id) or not self.is_header_sound:
            return False
        expected = [None, application_id] + ([NO_APPLICATION_ID] if _is_new(database) else [])
        written = committed = None
        for _, header, page in self._sound_frames(after=0):
            page_number, pages_after_commit = struct.unpack(">2I", header[:8])
            if page_number == 1:
                written = _application_id(page)
            if pages_after_commit:
                committed = written
        return committed not in expected

    def _damaged_frame(self, applied: int) -> int:
        """Return the first frame after the applied ones whose checksum does not match."""
        last_sound = applied
        for frame, _, _ in self._sound_frames(after=applied):
            last_sound = frame
        return min(last_sound + 1, self.commits[-1])

    def _sound_frames(self, after: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the frames after one, with header and page, up to the first whose checksum does not match."""
        with Path(self.path).open("rb") as wal:
            # A checksum includes the one before: in the header of the file or in that of a frame, at the end of it.
            wal.seek(HEADER_BYTES - 8 if after == 0 else self._place(after) + FRAME_HEADER_BYTES - 8)
            expected = Checksum(*struct.unpack(">2I", wal.read(8)))
            for frame in count(after + 1):
                wal.seek(self._place(frame))
                header, page = wal.read(FRAME_HEADER_BYTES), wal.read(self.page_size)
                if len(page) < self.page_size:
                    return
                expected = expected.over(header[:8], self.byte_order).over(page, self.byte_order)
                if header[8:] != self.salts + struct.pack(">2I", *expected):
                    return
                yield frame, header, page

    def _place(self, frame: int) -> int:
        return HEADER_BYTES + (frame - 1) * (FRAME_HEADER_BYTES + self.page_size)


def scan_wal(path: str) -> WalScan | None:
    """Return the commits in a WAL, or None if it does not exist or has no frames."""
    try:
        with Path(path).open("rb") as wal:
            size = os.fstat(wal.fileno()).st_size
            header = wal.read(HEADER_BYTES)
            return _scan(path, wal, header, size) if size > HEADER_BYTES else None
    except OSError:
        return None  # missing, or unreadable, which SQLite reports


def _scan(path: str, wal: BinaryIO, header: bytes, size: int) -> WalScan:
    magic, _, page_size, _ = struct.unpack(">4I", header[:16])
    byte_order = ">" if magic == MAGIC_BIG_ENDIAN else "<"
    is_sound = (
        magic in (MAGIC_LITTLE_ENDIAN, MAGIC_BIG_ENDIAN)
        and page_size in PAGE_SIZES
        and struct.pack(">2I", *Checksum().over(header[:24], byte_order)) == header[24:]
    )
    page_size = page_size if page_size in PAGE_SIZES else USUAL_PAGE_SIZE
    salts, commits, application_id = header[16:24] if is_sound else b"", [], None
    step = FRAME_HEADER_BYTES + page_size
    for frame in range(1, (size - HEADER_BYTES) // step + 1):
        wal.seek(HEADER_BYTES + (frame - 1) * step)
        start = wal.read(FRAME_HEADER_BYTES + APPLICATION_ID_AT + 4)
        page_number, pages_after_commit = struct.unpack(">2I", start[:8])
        salts = salts or start[8:16]
        if start[8:16] != salts:
            continue
        if pages_after_commit:
            commits.append(frame)
        if page_number == 1 and start[FRAME_HEADER_BYTES:].startswith(DATABASE_MAGIC):
            application_id = _application_id(start[FRAME_HEADER_BYTES:])
    return WalScan(path, page_size, byte_order, is_sound, salts, tuple(commits), application_id)


def _is_new(database: str) -> bool:
    """Return whether a database file has no application id yet."""
    with Path(database).open("rb") as file:
        return _application_id(file.read(APPLICATION_ID_AT + 4)) == NO_APPLICATION_ID


def _application_id(first_page: bytes) -> int:
    return int.from_bytes(first_page[APPLICATION_ID_AT : APPLICATION_ID_AT + 4], "big")
