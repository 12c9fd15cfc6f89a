"""The free space that counts is that of the disk with the data file, whatever symbolic link leads to it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holtmq.config import Config
from holtmq.server.disk_space import MOST_OF_FILE_SYSTEM, DiskSpace

OTHER_DISK = Path("/dev/shm")  # a file system of its own, which is what the test is about


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=OTHER_DISK) as folder:
        yield Path(folder)


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="there is no second file system to link to")
def test_a_data_file_behind_a_symbolic_link_counts_where_it_is(tmp_path: Path, elsewhere: Path) -> None:
    link, data = tmp_path / "a.db", elsewhere / "b.db"
    data.write_bytes(bytes(100))
    Path(f"{data}-wal").write_bytes(bytes(50))
    link.symlink_to(data)
    system = os.statvfs(elsewhere)
    space = DiskSpace(str(link), Config(data=str(link)).data_folder, 2**62)
    assert space.limit == int(system.f_blocks * system.f_frsize * MOST_OF_FILE_SYSTEM)
    assert space.used == 150
    assert Config(data=str(link)).data_folder == elsewhere
