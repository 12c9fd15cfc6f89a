"""The query that test_cluster.py disturbs: `python -m tests.spark.cluster_stream MASTER URL QUEUE FOLDER`.

It copies a stream queue into Parquet files, one folder for each micro-batch, slowly enough to be interrupted. It prints the
offsets in each folder as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holtmq.spark import register, session

MESSAGES, OFFSETS_PER_BATCH, TASKS_PER_BATCH = 2000, 1000, 8


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take a while for each task, so that executors and broker can be killed in the middle of a micro-batch."""
    time.sleep(0.5)
    yield from batches


def main(master: str, url: str, queue: str, folder: str) -> None:
    config = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.executor.cores": 1,
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    spark: SparkSession = session(master, config=config)
    register(spark)
    written: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(slowly, batch.schema).write.mode("overwrite").parquet(f"{folder}/{number}")
        written.append(number)

    options = {
        "url": url, "queue": queue, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(OFFSETS_PER_BATCH),
        "minPartitions": str(TASKS_PER_BATCH),
    }  # fmt: skip
    try:
        rows = spark.readStream.format("amqp").options(**options).load().select("offset", "body")
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        stored = [spark.read.parquet(f"{folder}/{number}").select("offset").collect() for number in written]
        print(json.dumps({"offsets": [sorted(row["offset"] for row in rows) for rows in stored]}), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
