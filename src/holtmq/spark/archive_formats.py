"""The formats of an archive, and read_archive(), which reads each of them such that nothing is lost.

Only formats that can represent the columns of a message, and that can store a batch exactly once, are supported. CSV and text
have no binary columns. Other table formats have no common way to recognise a batch that is written again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.columns import OFFSET, SCHEMA
from holtmq.spark.amqp.offset_column import STREAM_SCHEMA
from holtmq.spark.delta_table import DELTA, ArchiveTable

FILE_FORMATS = ("parquet", "orc", "json")
ARCHIVE_FORMATS = (*FILE_FORMATS, DELTA)
WRITE_OPTIONS = {"json": {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}}
"""Options for Spark's writer. By default, JSON contains times in milliseconds."""


def require_archive_format(name: str) -> str:
    """Return the name of a format in lower case. Raise InvalidValueError if archives cannot have it."""
    if name.lower() not in ARCHIVE_FORMATS:
        raise InvalidValueError(f"an archive cannot have the format {name!r}: expected one of {', '.join(ARCHIVE_FORMATS)}")
    return name.lower()


def read_archive(
    spark: SparkSession,
    source: str,
    *,
    format: str = "parquet",  # noqa: A002  # Spark's own word
) -> DataFrame:
    """Return the messages of an archive. The driver lists the files; the executors read them when the result is used.

    Files of different versions, which have different columns, can be read together. JSON of an archive is read with the types
    that were written; Spark would read binary columns as text. A Delta table needs the package deltalake, but no Delta Lake in
    Spark.

    Args:
        spark: The session.
        source: The folder of the archive, or the location of the Delta table.
        format: The format of the archive: parquet, orc, json or delta.
    """
    format = require_archive_format(format)  # noqa: A001
    if format == "json" and (schema := _json_schema(spark, source)) is not None:
        return spark.read.schema(schema).json(source)
    if format == DELTA:
        return ArchiveTable(source).read(spark)
    return spark.read.format(format).option("mergeSchema", True).load(source)


def _json_schema(spark: SparkSession, source: str) -> StructType | None:
    """Return the columns of JSON if it is that of an archive. Other JSON may have a body that is plain text."""
    first = spark.read.text(source).head()
    if first is None:
        return SCHEMA
    if '"source_queue"' not in first["value"]:
        return None
    return STREAM_SCHEMA if f'"{OFFSET}":' in first["value"] else SCHEMA
