"""The spool and its lock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from holtmq.spark.amqp.spool import Spool, SpoolError
from holtmq.spark.filesystems import filesystem_of, path_below
from holtmq.spark.locks import FolderLock

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2]})


def names(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir() if path.suffix == ".arrow")


def test_a_spool_has_one_user_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.spark.amqp.spool.LOCK_TIMEOUT_S", 0.2)
    first, second = Spool(str(tmp_path)), Spool(str(tmp_path))
    first.acquire()
    with pytest.raises(SpoolError, match="is used by another stream: each stream needs a spool of its own"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_streams_share_a_folder_and_remove_abandoned_spools(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not of the spool")
    alive, dead = Spool.temporary(str(tmp_path)), Spool.temporary(str(tmp_path))
    for spool in (alive, dead):
        spool.acquire()
        spool.write([ROWS], 1)
    dead.release()  # as if its process were killed
    third = Spool.temporary(str(tmp_path))
    third.acquire()
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", *(Path(spool.uri).name for spool in (alive, third))}
    for spool in (alive, third):
        spool.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_abandoned_temporary_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = Spool.temporary(None)
    left.acquire()
    left.release()  # as if its process were killed
    spool = Spool.temporary(None)
    spool.acquire()
    assert [str(path) for path in tmp_path.iterdir()] == [spool.uri]
    spool.remove()


def test_an_existing_segment_is_not_replaced(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.number({7: [spool.write([ROWS], 1)]})
    other = spool.write([ROWS], 2)
    with pytest.raises(SpoolError, match="already has a segment 7"):
        spool.number({7: [other]})
    assert names(tmp_path) == ["fresh", "segment"]


def test_after_a_crash_acknowledged_segments_are_recovered_and_others_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "segment-1" / "segment-2"  # a name that files of a spool have, too
    folder.mkdir(parents=True)
    spool = Spool(str(folder))
    for number in (1, 2, 3):
        spool.number({number: [spool.write([ROWS], number)]})
    spool.write([ROWS], 4)
    for _ in range(2):  # a second crash makes no difference
        spool.remove_fresh()
        assert [piece.rows for piece in spool.recover(last=1)] == [2, 2]
        assert names(folder) == ["segment", "taken", "taken"]


def test_a_segment_is_read_in_the_order_of_its_pieces(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    pieces = [
        spool.write([pa.RecordBatch.from_pydict({"n": [n]}), pa.RecordBatch.from_pydict({"n": [n + 1]})], n) for n in (1, 3)
    ]
    spool.number({5: pieces})
    assert [row["n"] for batch in spool.read(spool.segments()[5]) for row in batch.to_pylist()] == [1, 2, 3, 4]


def test_a_spool_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    for number, order in ((6, 1), (7, 2)):
        Path(spool.write([ROWS], order)).rename(tmp_path / f"segment-{number:012}.arrow")
    assert sum(batch.num_rows for batch in spool.read(spool.segments()[6])) == 2
    assert [piece.rows for piece in spool.recover(last=6)] == [2]


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/lake/lake/f", "/lake"),
        ("file:///lake/lake/f", "/lake"),
        ("file:/lake/lake/f", "/lake"),
        ("hdfs://lake:8020/lake/lake/f", "/lake"),
        ("hdfs://lake/lake/lake/f", "/lake"),
        ("s3a://lake/lake/f", "lake"),
    ],
)
def test_a_path_below_a_folder_may_contain_its_name(path: str, root: str) -> None:
    assert path_below(path, root) == "lake/f"


def test_executors_get_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Spool("spool").uri == str(tmp_path / "spool")


def test_a_lock_is_lost_when_its_folder_is_removed_and_created_again(tmp_path: Path) -> None:
    filesystem, path = filesystem_of(str(tmp_path / "folder"))
    first, second = FolderLock(filesystem, path), FolderLock(filesystem, path)
    assert first.acquire(0)
    shutil.rmtree(path)
    assert not second.acquire_if_abandoned()
    assert second.acquire(0)
    assert not FolderLock(filesystem, path).acquire(0)
    first.release()
    assert not FolderLock(filesystem, path).acquire_if_abandoned()
    second.release()
