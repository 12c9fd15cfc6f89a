"""The route job: files or a table in, deliveries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
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
from holtmq.routing import Router
from holtmq.spark.deliveries import make_order, route
from holtmq.spark.messages import DEFAULT_COLUMNS, Columns, Matters, Signature
from holtmq.spark.parquet import Counts, Source, filesystem_of, located, route_files
from holtmq.spark.routes import Unroutable
from holtmq.topology import DEFAULT_VHOST, Topology

PLAIN_TYPES = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
MODES = ("error", "append", "overwrite", "ignore")


@dataclass(frozen=True, slots=True)
class RouteSummary:
    """What the job did, and by which of its two ways."""

    counts: Counts
    by: str

    def to_json(self) -> dict[str, Any]:
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
    mode: str = "error",
    partition_by: Sequence[str] = (),
    vhost: str = DEFAULT_VHOST,
    exchange: str | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    unroutable: Unroutable = "keep",
    settings: bool = False,
    bindings: bool = False,
) -> RouteSummary:
    """Route all messages of `source` and write the deliveries to `target`, by queue if `partition_by` says so.

    `format` is any that Spark reads, or "table" for the name of a table. From Parquet to Parquet, tasks read and write the
    files themselves, which is faster than Spark's own way; where columns or file system do not allow it, Spark does it.
    """
    if mode not in MODES:
        raise InvalidValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if format != "table":
        source = located(spark, source)
    if target_format != "table":
        target = located(spark, target)
    messages = _read(spark, source, format, options or {})
    asked = {"vhost": vhost, "exchange": exchange, "columns": columns, "unroutable": unroutable}
    if format == target_format == "parquet" and not options and mode != "ignore" and tuple(partition_by) in ((), ("queue",)):
        router = Router(topology, vhost)
        matters = Matters.to(router)
        signature = Signature.of(messages, columns, exchange, matters._replace(keyless=frozenset()))  # the tasks see to that
        order = make_order(
            topology, router, matters, signature, exchange, messages.columns, unroutable, settings=settings, bindings=bindings
        )
        files = _files(spark, source, target, messages, signature, columns)
        if files is not None:
            has_headers = columns.headers in messages.columns
            order = replace(order, carried=tuple(files.schema.names), headers=columns.headers if has_headers else None)
            counts = route_files(spark, files, target, order, mode=mode, by_queue=bool(partition_by))
            return RouteSummary(counts, "arrow")
    deliveries = route(messages, topology, settings=settings, bindings=bindings, **asked)  # type: ignore[arg-type]
    return RouteSummary(_write(messages, deliveries, target, target_format, mode, partition_by), "spark")


def _read(spark: SparkSession, source: str, format_: str, options: Mapping[str, str]) -> DataFrame:
    if format_ == "table":
        return spark.table(source)
    return spark.read.format(format_).options(**options).load(source)


def _files(
    spark: SparkSession, source: str, target: str, messages: DataFrame, signature: Signature, columns: Columns
) -> Source | None:
    """The files, if tasks can read them: the signature is text, all types are Arrow's too, and so are the file systems."""
    parts = [part for part in (signature.routing_key, signature.exchange) if part is not None]
    has_text_headers = columns.headers not in messages.columns or isinstance(_type(messages, columns.headers), StringType)
    if not has_text_headers or any(part.is_added for part in parts) or not _is_plain(messages.schema):
        return None
    try:
        filesystem_of(target)
        return Source.at(
            source, to_arrow_schema(messages.schema, timezone="UTC"), least=2 * spark.sparkContext.defaultParallelism
        )
    except (InvalidValueError, OSError, pa.ArrowException):
        return None


def _type(messages: DataFrame, name: str) -> DataType:
    return messages.schema[name].dataType


def _is_plain(type_: DataType) -> bool:
    """Whether Parquet, Arrow and Spark mean the same by values of this type."""
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
) -> Counts:
    """Write as Spark does, counting on the way."""
    written = Observation()
    is_nowhere, is_malformed = F.col("queue").isNull(), F.col("reason").isNotNull()
    observed = deliveries.observe(
        written,
        F.count(F.when(~is_nowhere, 1)).alias("deliveries"),
        F.count(F.when(is_nowhere & ~is_malformed, 1)).alias("unroutable"),
        F.count(F.when(is_malformed, 1)).alias("malformed"),
    )
    writer = observed.write.mode(mode).partitionBy(*partition_by)
    if format_ == "table":
        writer.saveAsTable(target)
    else:
        writer.format(format_).save(target)
    return Counts(messages.count(), **written.get)
