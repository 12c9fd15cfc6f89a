"""route_job(): files or a table in, deliveries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import signature as parameters_of
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holtmq.errors import InvalidValueError
from holtmq.spark.added_columns import AddedColumns
from holtmq.spark.arguments import require_one_of
from holtmq.spark.deliveries import route_prepared
from holtmq.spark.deprecated_names import OldToJson
from holtmq.spark.filesystems import filesystem_of, qualify
from holtmq.spark.input_formats import TABLE, delta_lake_required, read_messages
from holtmq.spark.parquet import route_files
from holtmq.spark.parquet_source import ParquetSource
from holtmq.spark.prepared_request import PreparedRequest
from holtmq.spark.routing_request import DEFAULT_COLUMNS, Columns, RoutingRequest, Unroutable
from holtmq.spark.routing_task import RouteCounts
from holtmq.topology import DEFAULT_VHOST, Topology

PLAIN_TYPES = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
WriteMode: TypeAlias = Literal["error", "append", "overwrite", "ignore"]
IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in parameters_of(to_arrow_schema).parameters else {}
"""Spark 4.0 has no such parameter: timestamps are in UTC there."""
ADVICE = "write parquet, and turn the folder into a table with deltalake.convert_to_deltalake"
MODES: tuple[WriteMode, ...] = ("error", "append", "overwrite", "ignore")


@dataclass(frozen=True, slots=True)
class RouteSummary(OldToJson):
    """The result of a routing job."""

    counts: RouteCounts
    by: Literal["arrow", "spark"]
    """Whether the tasks read and wrote the files themselves, or Spark did."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        return {**asdict(self.counts), "by": self.by}


def route_job(
    spark: SparkSession,
    source: str,
    target: str,
    topology: Topology,
    *,
    format: str = "parquet",  # noqa: A002  # Spark's own word
    target_format: str = "parquet",
    options: Mapping[str, str] | None = None,
    mode: WriteMode = "error",
    partition_by: Sequence[str] = (),
    vhost: str = DEFAULT_VHOST,
    exchange: str | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    unroutable: Unroutable = "keep",
    settings: bool = False,
    bindings: bool = False,
    counted: Accumulator[int] | None = None,
) -> RouteSummary:
    """Route all messages of `source` and write one row per delivery to `target`. Runs the job.

    From Parquet to Parquet, the tasks on the executors read, route and write the files themselves, and the driver moves the
    complete files into place. If types or file systems do not allow that, and for all other formats, Spark reads and writes,
    and `route` routes.

    Args:
        spark: The session that runs the job.
        source: The path, URI or table to read.
        target: The path, URI or table to write.
        topology: The exchanges, queues and bindings.
        format: Any format that Spark reads, "delta", or "table".
        target_format: Any format that Spark writes, or "table".
        options: Options for Spark's reader.
        mode: What to do if the target exists: "error", "append", "overwrite" or "ignore".
        partition_by: Columns that name the folders of the output, such as `["queue"]`.
        vhost: The virtual host of the topology.
        exchange: The exchange of all messages (default: the exchange column).
        columns: The names of the columns for routing key, exchange and headers.
        unroutable: "keep", "drop" or return "only" messages that reach no queue.
        settings: Whether to add the priority and time to live that bindings set.
        bindings: Whether to add the bindings through which the message entered the queue.
        counted: A Spark accumulator to which tasks that read files themselves add the number of messages, for a progress bar.
    """
    require_one_of("mode", mode, MODES)
    if isinstance(partition_by, str):
        raise InvalidValueError(f"partition_by must be a sequence of column names such as ['queue'], got {partition_by!r}")
    if format != TABLE:
        source = qualify(spark, source)
    if target_format != TABLE:
        target = qualify(spark, target)
    request = RoutingRequest(topology, vhost, exchange, columns, unroutable, AddedColumns(settings, bindings))
    prepared = PreparedRequest.of(read_messages(spark, source, format, options or {}), request)
    if format == target_format == "parquet" and not options and mode != "ignore" and tuple(partition_by) in ((), ("queue",)):
        counts = _route_files(spark, source, target, prepared, mode=mode, by_queue=bool(partition_by), counted=counted)
        if counts is not None:
            return RouteSummary(counts, "arrow")
    deliveries = route_prepared(prepared)
    return RouteSummary(_write(prepared.messages, deliveries, target, target_format, mode, partition_by), "spark")


def _route_files(
    spark: SparkSession,
    source: str,
    target: str,
    prepared: PreparedRequest,
    *,
    mode: str,
    by_queue: bool,
    counted: Accumulator[int] | None,
) -> RouteCounts | None:
    """Let tasks read and write the files, or return None if types or file systems do not allow that."""
    parts = prepared.signature.text_columns()
    files = _files(spark, source, target, prepared.messages) if parts is not None else None
    if parts is None or files is None:
        return None
    spec = replace(prepared.spec, unroutable=prepared.request.unroutable)
    return route_files(spark, files, target, spec, parts, mode=mode, by_queue=by_queue, counted=counted)


def _files(spark: SparkSession, source: str, target: str, messages: DataFrame) -> ParquetSource | None:
    """Return the files if tasks can read and write them: Arrow supports all types and the file systems."""
    if not _is_plain(messages.schema):
        return None
    try:
        filesystem_of(target)
        schema = to_arrow_schema(messages.schema, **IN_UTC)
        return ParquetSource.at(source, schema, min_splits=2 * spark.sparkContext.defaultParallelism)
    except (InvalidValueError, OSError, pa.ArrowException):
        return None


def _is_plain(type_: DataType) -> bool:
    """Return whether values of this type mean the same in Parquet, Arrow and Spark."""
    match type_:
        case ArrayType(elementType=inner):
            return _is_plain(inner)
        case MapType(keyType=key, valueType=value):
            return _is_plain(key) and _is_plain(value)
        case StructType():
            return all(_is_plain(field.dataType) for field in type_)
        case _:
            return isinstance(type_, PLAIN_TYPES)


def _write(
    messages: DataFrame, deliveries: DataFrame, target: str, format_: str, mode: str, partition_by: Sequence[str]
) -> RouteCounts:
    """Let Spark write the deliveries, and count them at the same time."""
    written = Observation()
    is_undelivered, is_malformed = F.col("queue").isNull(), F.col("reason").isNotNull()
    observed = deliveries.observe(
        written,
        F.count(F.when(~is_undelivered, 1)).alias("deliveries"),
        F.count(F.when(is_undelivered & ~is_malformed, 1)).alias("unroutable"),
        F.count(F.when(is_malformed, 1)).alias("malformed"),
    )
    writer = observed.write.mode(mode).partitionBy(*partition_by)
    if format_ == TABLE:
        writer.saveAsTable(target)
    else:
        with delta_lake_required("deliveries in the format delta", ADVICE):
            writer.format(format_).save(target)
    return RouteCounts(messages.count(), **written.get)
