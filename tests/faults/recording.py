"""What the shim recorded, and what a power cut leaves of it.

A disk keeps what was synced. Of what was written later it keeps anything: all, nothing, some of the writes, or some sectors of
a write. A new or deleted name is kept once its folder was synced. Writes before a sync that failed may be lost even if
a later sync succeeds, because the operating system may have dropped them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct("=bBHiiiq")
SECTORS = (512, 4096)
FOLDER = "."
LOST_ANYWAY = ("-shm",)
"""Endings of files that are no use after a crash. SQLite makes this one anew."""


class Record(NamedTuple):
    kind: str
    name: str
    process: int
    stream: int
    offset: int
    data: bytes


def read_log(path: Path) -> Iterator[Record]:
    """Yield the records. A process that was killed while it wrote the last one leaves a part of it, which does not count."""
    log = path.read_bytes()
    at = 0
    while at + HEAD.size <= len(log):
        kind, name_size, _, process, stream, size, offset = HEAD.unpack_from(log, at)
        at += HEAD.size
        if at + name_size + size > len(log):
            return
        name = log[at : at + name_size].decode()
        at += name_size
        yield Record(chr(kind), name, process, stream, offset, log[at : at + size])
        at += size


class Change(NamedTuple):
    """A write, or a truncation if there is no data."""

    offset: int
    data: bytes | None


@dataclass
class File:
    """What is on disk of a file, and the changes that may or may not be."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    doomed: list[Change] = field(default_factory=list)
    """Changes before a sync that failed. No later sync makes sure of them."""
    syncing: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many of the pending changes each sync that is under way includes, by process and descriptor."""

    def survive(self, rng: random.Random) -> bytes:
        """Return what a power cut leaves."""
        content = bytearray(self.content)
        changes = self.doomed + self.pending
        mode = rng.choice(("none", "all", "first", "some", "torn", "torn"))
        cut = rng.randint(0, len(changes))
        for number, change in enumerate(changes):
            if mode == "all" or (mode == "first" and number < cut) or (mode == "some" and rng.random() < 0.5):
                apply(content, change)
            elif mode == "torn":
                for part in _sectors(change, rng.choice(SECTORS)):
                    if rng.random() < 0.6:
                        apply(content, part)
        return bytes(content)


def apply(content: bytearray, change: Change) -> None:
    """Change the content of a file."""
    end = change.offset + len(change.data or b"")
    if change.data is None:
        del content[end:]
    if len(content) < end:
        content += bytes(end - len(content))
    if change.data is not None:
        content[change.offset : end] = change.data


def _sectors(change: Change, size: int) -> Iterator[Change]:
    if change.data is None:
        yield change
        return
    at, end = change.offset, change.offset + len(change.data)
    while at < end:
        after = min(end, (at // size + 1) * size)
        yield Change(at, change.data[at - change.offset : after - change.offset])
        at = after


def _not_covered(old: Change, new: Change) -> Iterator[Change]:
    """Yield what a later change leaves of an older one."""
    if old.data is None or new.data is None:
        return
    start, end = old.offset, old.offset + len(old.data)
    if start < new.offset:
        yield Change(start, old.data[: new.offset - start])
    if (after := new.offset + len(new.data)) < end:
        yield Change(max(start, after), old.data[max(0, after - start) :])


class Disk:
    """A folder on a disk that loses its power."""

    def __init__(self, before: Path) -> None:
        self._files = {path.name: File(bytearray(path.read_bytes())) for path in before.iterdir()}
        self._names = dict(self._files)
        """The names that are on disk."""
        self._renamed: list[dict[str, File]] = []
        """The names after each change since the folder was synced."""

    def take(self, record: Record) -> None:
        """Follow what a process did."""
        name = record.name
        match record.kind:
            case "w":
                self._file(name).pending.append(Change(record.offset, record.data))
            case "t":
                self._file(name).pending.append(Change(record.offset, None))
            case "c" if name not in self._files:
                self._rename({**self._files, name: File()})
            case "u":
                self._rename({other: file for other, file in self._files.items() if other != name})
            case "r":
                others = {other: file for other, file in self._files.items() if other != name}
                self._rename({**others, record.data.decode(): self._files[name]})
            case "b" if name != FOLDER:
                self._file(name).syncing[record.process, record.stream] = len(self._file(name).pending)
            case "e" if name == FOLDER:
                self._names, self._renamed = dict(self._files), []
            case "e":
                self._synced(self._file(name), (record.process, record.stream))
            case "f" if name != FOLDER:
                file = self._file(name)
                file.doomed, file.pending, file.syncing = file.doomed + file.pending, [], {}

    def survive(self, rng: random.Random, folder: Path) -> None:
        """Write what a power cut leaves into a new folder."""
        folder.mkdir()
        names = [self._names, *self._renamed][rng.randint(0, len(self._renamed))]
        for name, file in names.items():
            if not name.endswith(LOST_ANYWAY):
                (folder / name).write_bytes(file.survive(rng))

    def keep_synced(self, folder: Path) -> None:
        """Write what was synced, and nothing else, into a new folder: the least that a power cut may leave."""
        folder.mkdir()
        for name, file in self._names.items():
            if not name.endswith(LOST_ANYWAY):
                (folder / name).write_bytes(file.content)

    def _file(self, name: str) -> File:
        return self._files.get(name) or File()  # a process may go on with a file that another one has deleted

    def _rename(self, files: dict[str, File]) -> None:
        self._files = files
        self._renamed.append(files)

    def _synced(self, file: File, sync: tuple[int, int]) -> None:
        """Keep the changes before the sync."""
        count = file.syncing.pop(sync, 0)
        for change in file.pending[:count]:
            apply(file.content, change)
            file.doomed = [part for old in file.doomed for part in _not_covered(old, change)]
        del file.pending[:count]
        file.syncing = {other: max(0, size - count) for other, size in file.syncing.items()}
