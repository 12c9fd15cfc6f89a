"""What test_cluster.py runs as an application of its own: `python -m tests.spark.cluster_job MASTER IN OUT`.

It routes messages twice, by DataFrame and by the job from Parquet to Parquet, slowly enough to be disturbed, and prints
what it found as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from holtmq.spark import route, route_job, session
from holtmq.topology import Binding, Exchange, Queue, Topology

SHOP = Topology(
    (Exchange("orders", "topic"),),
    (Queue("food"), Queue("all")),
    (Binding("orders", "food", "orders.food.#"), Binding("orders", "all", "#")),
)
MESSAGES, TASKS = 8000, 24


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(0.25)
    yield from batches


def whereabouts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import holtmq

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [holtmq.__file__]})


def main(master: str, source: str, target: str) -> None:
    spark: SparkSession = session(master, config={"spark.executor.memory": "1g", "spark.executor.cores": 1})
    try:
        messages = spark.range(0, MESSAGES, 1, TASKS).selectExpr(
            "id", "'orders' as exchange", "concat('orders.', if(id % 4 = 0, 'food.', 'toys.'), id) as routing_key"
        )
        print("started", flush=True)
        paths = {row["path"] for row in spark.range(0, 4, 1, 4).mapInArrow(whereabouts, "path string").collect()}
        routed = route(messages.mapInArrow(slowly, messages.schema), SHOP, plan="arrow")
        counts = {row["queue"]: row["count"] for row in routed.groupBy("queue").count().collect()}
        messages.write.mode("overwrite").parquet(source)
        job = route_job(spark, source, target, SHOP, partition_by=["queue"])
        files = {row["queue"]: row["count"] for row in spark.read.parquet(target).groupBy("queue").count().collect()}
        print(json.dumps({"paths": sorted(paths), "counts": counts, "job": job.to_dict(), "files": files}), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
