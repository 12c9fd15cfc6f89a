"""The application that test_guarantees.py kills: `python -m tests.spark.killed_application URL FOLDER`.

It runs several streams at once, each from the queue of its name, in small batches. The Delta table stops after its second
commit, before Spark can note that the batch is written.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holtmq.spark import archive, register, session
from holtmq.spark.archive_sink import DeltaSink
from tests.deadline import eventually

BATCH = 50
MANY = "many"
"""A queue with more messages than a task reads at once."""
START_TIMEOUT_S = 180.0


def run_archive(spark: SparkSession, url: str, folder: Path, format_: str, batch: int) -> None:
    target, checkpoint = str(folder / "out"), str(folder / "checkpoint")
    archive(
        spark, format_, target, checkpoint=checkpoint, url=url, format=format_, compact=False, max_messages_per_trigger=batch
    )


def run_stream(spark: SparkSession, url: str, folder: Path, ack: str, batch: int) -> None:
    options = {"url": url, "queue": ack, "ack": ack, "maxMessagesPerTrigger": str(batch)}
    if ack == "spool":
        options["spool"] = str(folder / "spool")
    rows = spark.readStream.format("amqp").options(**options).load()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start(str(folder / "out"), format="parquet").awaitTermination()


STREAMS: dict[str, Callable[[SparkSession, str, Path, str, int], None]] = {
    "delta": run_archive,
    "parquet": run_archive,
    "spool": run_stream,
    "commit": run_stream,
}
"""The ways to write a queue to disk, by the names of their queues and folders. Each runs until its queue is empty."""


def stop_after_the_second_commit(done: Path) -> None:
    """Let the sink of the Delta table wait for ever, with a batch in the table that Spark has not recorded."""
    batches = 0
    write = DeltaSink.write

    def write_and_wait(sink: DeltaSink, rows: DataFrame, query_id: str, batch_id: int) -> int:
        nonlocal batches
        count = write(sink, rows, query_id, batch_id)
        batches += 1
        if batches == 2:
            done.write_text(str(batch_id))
            threading.Event().wait()
        return count

    DeltaSink.write = write_and_wait  # type: ignore[assignment, method-assign]


def main(url: str, folder: str) -> None:
    spark = session("local[2]", config={"spark.driver.memory": "1g"})
    register(spark)
    assert len(spark.read.format("amqp").options(url=url, queue=MANY).load().limit(1).collect()) == 1
    stop_after_the_second_commit(Path(folder) / "delta" / "written")
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
