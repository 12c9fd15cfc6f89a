"""The shim that makes a process meet faults (shim.c): building it, and setting what goes wrong."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from enum import IntEnum, IntFlag
from pathlib import Path

from tests.peers.peer import GCC

SOURCE = Path(__file__).with_name("shim.c")
SIZE = 144
CLOCK, SYNC_TIME, SPACE, SKIP, LEFT, HITS = range(0, 48, 8)
RULE = 48
"""Offsets in `struct control`."""
NO_LIMIT = -1


class NoShim:
    """Disk and clock of the processes stay well: their data is elsewhere."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)

    def set_sync_time(self, _: float) -> None: ...
    def set_clock(self, _: float) -> None: ...
    def heal(self) -> None: ...


class Call(IntFlag):
    """The kinds of calls that a rule applies to."""

    READ = 1
    WRITE = 2
    SYNC = 4


class Outcome(IntEnum):
    """What becomes of a call, instead of an error number."""

    SHORT = 0
    """Half of it is done."""
    DIE = -1
    """Half of it is done, and the process is killed."""
    SWALLOW = -2
    """A sync does nothing and says that it did."""


class Shim:
    """The faults of the processes that work in a folder and were started with this `environment`."""

    def __init__(self, library: Path, folder: Path, control: Path, log: Path | None = None) -> None:
        control.write_bytes(bytes(SIZE))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), SIZE)
        self.heal()
        self.environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "HOLTMQ_FAULTS_FOLDER": str(folder),
            "HOLTMQ_FAULTS_CONTROL": str(control),
        }
        if log is not None:
            self.environment["HOLTMQ_FAULTS_LOG"] = str(log)

    def set_rule(self, calls: Call, error: int, *, ending: str = "", skip: int = 0, count: int = 1) -> None:
        """Make the next `count` calls on files whose names end like this fail, after `skip` more that do not."""
        self._set(LEFT, 0)
        struct.pack_into("=ii16s", self._control, RULE, calls, error, ending.encode())
        self._set(SKIP, skip)
        self._set(HITS, 0)
        self._set(LEFT, count)

    def set_space(self, size: int) -> None:
        """Set by how many bytes the files may still grow until the disk is full."""
        self._set(SPACE, size)

    def set_clock(self, offset_s: float) -> None:
        """Set how much the wall clock differs from the true time."""
        self._set(CLOCK, round(offset_s * 1e9))

    def set_sync_time(self, milliseconds: float) -> None:
        self._set(SYNC_TIME, round(milliseconds * 1000))

    def heal(self) -> None:
        """Let everything succeed again. The clock stays as it is."""
        self._set(LEFT, 0)
        self._set(SPACE, NO_LIMIT)

    @property
    def hits(self) -> int:
        """The number of calls that the rule has made fail."""
        return int(struct.unpack_from("=q", self._control, HITS)[0])

    def _set(self, offset: int, value: int) -> None:
        struct.pack_into("=q", self._control, offset, value)


def build_shim(folder: Path) -> Path:
    """Compile the shim and return its path."""
    library = folder / "shim.so"
    subprocess.run([GCC.program(), "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE, "-ldl"], check=True)
    return library
