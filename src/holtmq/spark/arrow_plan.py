"""The plan that reads the messages once: only their signatures go through Arrow to Python, and lists of routes come back.

The rest of a message stays in the JVM, which also repeats it for each queue. It works for batches and streams, and runs no job
before the result is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holtmq.spark.route_cache import RouteCache
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature_batch import SignatureBatch


@dataclass(frozen=True, slots=True)
class ListingTask:
    """Routes batches of signatures. Created on the driver, pickled with the tasks, used on the executors."""

    spec: RoutingSpec
    parts: tuple[str, ...]
    """Names of the parts of the signature, in the order of the columns."""

    def run(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Yield the routes of each signature as lists, in smaller batches if there are many. Spark calls this once per task."""
        cache = RouteCache.shared(self.spec)
        for columns in batches:
            yield from cache.lists(cache.outcomes(SignatureBatch(**dict(zip(self.parts, columns, strict=True)))))

    def run_single(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Do the same for a signature that is a single column."""
        return self.run((column,) for column in batches)

    def run_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return whole messages with their routes in a last column, for versions of Spark without Arrow functions."""
        for batch in batches:
            signatures = tuple(batch.columns[-len(self.parts) :])
            start = 0
            for lists in self.run(iter([signatures])):
                rows = batch.slice(start, len(lists)).columns[: -len(self.parts)]
                yield pa.RecordBatch.from_arrays([*rows, lists], [f"c{number}" for number in range(len(rows) + 1)])
                start += len(lists)


def with_routes_by_arrow(messages: DataFrame, parts: dict[str, Column], spec: RoutingSpec, name: str) -> DataFrame:
    """Add the routes of each message, as an array of structs in a column of this name."""
    task = ListingTask(spec, tuple(parts))
    if not hasattr(F, "arrow_udf"):  # before Spark 4.1
        return _with_routes_by_rows(messages, parts, task, name)
    run = task.run if len(parts) > 1 else task.run_single
    routes = F.arrow_udf(run, spec.added.list_type)
    return messages.select("*", routes(*parts.values()).alias(name))


def _with_routes_by_rows(messages: DataFrame, parts: dict[str, Column], task: ListingTask, name: str) -> DataFrame:
    together = messages.select("*", *parts.values())
    numbered = together.toDF(*(f"c{number}" for number in range(len(together.columns))))  # names may have dots or be equal
    fields = [StructField(f"c{number}", field.dataType, field.nullable) for number, field in enumerate(messages.schema)]
    schema = StructType([*fields, StructField(f"c{len(fields)}", task.spec.added.list_type)])
    return numbered.mapInArrow(task.run_rows, schema).toDF(*messages.columns, name)
