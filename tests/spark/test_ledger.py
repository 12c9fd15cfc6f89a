"""The states of received messages, without Spark and without a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from holtmq.spark.amqp.ledger import Ledger
from holtmq.spark.amqp.segment import Piece
from holtmq.spark.amqp.spool import Spool

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Connection:
    """A connection that notes what is acknowledged, and can be lost."""

    acknowledged: list[str] = field(default_factory=list)
    is_open: bool = True

    def acknowledge(self, piece: Piece) -> None:
        self.acknowledged.append(piece.name)

    def has(self, piece: Piece) -> bool:
        return self.is_open and piece.receiver is self


class Scene:
    """A ledger with a spool, and pieces of given sizes."""

    def __init__(self, folder: Path, ack: str, segment_rows: int = 10) -> None:
        self.folder = folder
        self.spool = Spool(str(folder))
        self.ledger = Ledger(self.spool, segment_rows=segment_rows, keeps_spool=ack == "spool")
        self.order = 0

    def receive(self, connection: Connection, *sizes: int) -> list[str]:
        names = []
        for rows in sizes:
            self.order += 1
            names.append(self.spool.write([pa.RecordBatch.from_pydict({"n": [self.order] * rows})], self.order))
            self.ledger.add(Piece(names[-1], rows, NOW, 0, connection))
        return names

    def files(self) -> dict[str, int]:
        kinds = [path.name.split("-")[0] for path in self.folder.iterdir() if path.suffix == ".arrow"]
        return {kind: kinds.count(kind) for kind in sorted({*kinds})}


@pytest.mark.parametrize("ack", ["commit", "spool"])
def test_a_message_is_acknowledged_when_its_guarantee_says(tmp_path: Path, ack: str) -> None:
    scene, connection = Scene(tmp_path, ack), Connection()
    names = scene.receive(connection, 4, 4)
    assert scene.files() == {"fresh": 2}
    assert connection.acknowledged == []
    assert scene.ledger.plan(0, None) == 1
    assert scene.files() == {"segment": 2}
    assert connection.acknowledged == (names if ack == "spool" else [])
    scene.ledger.commit(1)
    assert scene.files() == {}
    assert connection.acknowledged == names
    assert scene.ledger.acknowledged == 8


def test_segments_have_the_size_of_a_task_and_batches_theirs(tmp_path: Path) -> None:
    scene, connection = Scene(tmp_path, "commit", segment_rows=10), Connection()
    scene.receive(connection, 4, 4, 4, 10, 30, 1)
    assert scene.ledger.plan(0, 25) == 3  # 4 + 4, 4, 10
    assert [len(names) for names in scene.spool.segments().values()] == [2, 1, 1]
    assert scene.ledger.plan(3, 25) == 4  # one piece is always taken
    assert scene.ledger.plan(4, 25) == 5
    assert scene.ledger.plan(5, 25) == 5
    assert scene.ledger.taken == 53


def test_a_stream_with_an_end_leaves_what_comes_later(tmp_path: Path) -> None:
    scene, connection = Scene(tmp_path, "commit"), Connection()
    scene.receive(connection, 4, 4, 4)
    scene.ledger.plan(0, None, enough=5)
    assert (scene.ledger.taken, scene.ledger.fresh_rows) == (8, 4)


def test_fresh_pieces_of_a_lost_connection_are_discarded_and_planned_ones_kept(tmp_path: Path) -> None:
    scene, lost, other = Scene(tmp_path, "commit"), Connection(), Connection()
    scene.receive(lost, 3)
    scene.ledger.plan(0, None)
    scene.receive(lost, 3)
    scene.receive(other, 2)
    lost.is_open = False
    scene.ledger.plan(1, None)
    assert scene.files() == {"segment": 2}
    assert [sum(batch.num_rows for batch in scene.spool.read(names)) for names in scene.spool.segments().values()] == [3, 2]
    assert [piece.rows for piece in scene.ledger.left(after=1)] == [2]


def test_what_an_earlier_process_acknowledged_and_spark_did_not_record_is_planned_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "spool")
    scene.receive(Connection(), 4, 4, 4, 1)
    scene.ledger.plan(0, 12)
    again = Ledger(Spool(str(tmp_path)), segment_rows=10, keeps_spool=True)
    assert again.recover(last=1) == 4  # segment 1 is in a recorded batch; segment 2 is not; the last piece was never planned
    assert again.plan(1, None) == 2
    assert scene.files() == {"segment": 3}
    assert again.acknowledged == 0
