"""The application that test_guarantees.py kills: `python -m tests.spark.killed_application URL FOLDER`.

It runs several streams at once, each from the queue of its name, in small batches. The table "delta" stops after its second
commit, before Spark can note that the batch is written. The table "uncommitted" stops before its second commit, with the files
of the batch in place.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holtmq.spark import archive, archive_sink, register, session
from holtmq.spark.archive_sink import DeltaSink
from holtmq.spark.delta_table import ArchiveTable, NewFile
from tests.deadline import eventually

BATCH = 50
MANY = "many"
"""A queue with more messages than a task reads at once."""
START_TIMEOUT_S = 180.0


def run_archive(spark: SparkSession, url: str, folder: Path, queue: str, batch: int) -> None:
    target, checkpoint = str(folder / "out"), str(folder / "checkpoint")
    format_ = "parquet" if queue == "parquet" else "delta"
    archive(spark, queue, target, checkpoint=checkpoint, url=url, format=format_, compact=False, max_messages_per_trigger=batch)


def run_stream(spark: SparkSession, url: str, folder: Path, ack: str, batch: int) -> None:
    options = {"url": url, "queue": ack, "ack": ack, "maxMessagesPerTrigger": str(batch)}
    if ack == "spool":
        options["spool"] = str(folder / "spool")
    rows = spark.readStream.format("amqp").options(**options).load()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start(str(folder / "out"), format="parquet").awaitTermination()


STREAMS: dict[str, Callable[[SparkSession, str, Path, str, int], None]] = {
    "delta": run_archive,
    "uncommitted": run_archive,
    "parquet": run_archive,
    "spool": run_stream,
    "commit": run_stream,
}
"""The ways to write a queue to disk, by the names of their queues and folders. Each runs until its queue is empty."""


def stop_after_the_second_commit(place: Path) -> None:
    """Let the sink of a Delta table wait for ever, with a batch in the table that Spark has not recorded."""
    write = DeltaSink.write

    def write_and_wait(sink: DeltaSink, rows: DataFrame, query_id: str, batch_id: int) -> int:
        count = write(sink, rows, query_id, batch_id)
        if batch_id == 1:  # the other table waits earlier
            place.write_text(str(batch_id))
            threading.Event().wait()
        return count

    DeltaSink.write = write_and_wait  # type: ignore[assignment, method-assign]


class UncommittedTable(ArchiveTable):
    """A table that waits for ever before its second commit, if it is the one of the stream "uncommitted"."""

    stopped: Path

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._is_waiting = Path(uri).parent == self.stopped.parent

    def commit(self, files: list[NewFile], query_id: str, batch_id: int) -> None:
        if self._is_waiting and batch_id == 1:
            self.stopped.write_text(str(batch_id))
            threading.Event().wait()
        super().commit(files, query_id, batch_id)


def main(url: str, folder: str) -> None:
    spark = session("local[2]", config={"spark.driver.memory": "1g"})
    register(spark)
    assert len(spark.read.format("amqp").options(url=url, queue=MANY).load().limit(1).collect()) == 1
    stop_after_the_second_commit(Path(folder) / "delta" / "written")
    UncommittedTable.stopped = Path(folder) / "uncommitted" / "stopped"
    archive_sink.ArchiveTable = UncommittedTable  # type: ignore[attr-defined]
    for name, run in STREAMS.items():
        threading.Thread(target=run, args=(spark, url, Path(folder) / name, name, BATCH), name=name).start()
        # the Python process of a stream has ten seconds to start, so it starts alone
        eventually(lambda: has_started(spark, name), f"the stream {name}", patience_s=START_TIMEOUT_S)  # noqa: B023


def has_started(spark: SparkSession, name: str) -> bool:
    """Return whether a stream reads its source, or has ended."""
    if not any(thread.name == name for thread in threading.enumerate()):
        return True
    found = [query.status["message"] for query in spark.streams.active]
    return len(found) > list(STREAMS).index(name) and not any(message.startswith("Initializing") for message in found)


if __name__ == "__main__":
    main(*sys.argv[1:])
