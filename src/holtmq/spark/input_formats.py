"""The formats that jobs read: any that Spark reads, tables of the catalog, and Delta tables. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holtmq.errors import InvalidValueError
from holtmq.spark.delta_table import DELTA, ArchiveTable

TABLE = "table"


def read_messages(spark: SparkSession, source: str, format_: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of a source. The executors read them when the result is used.

    A Delta table needs the package deltalake. With options, which only Delta Lake understands, Spark needs that instead.
    """
    if format_ == TABLE:
        return spark.table(source)
    if format_ == DELTA and not options:
        return ArchiveTable(source).read(spark)
    with delta_lake_required("options for the format delta", "leave them out to read the newest version"):
        return spark.read.format(format_).options(**options).load(source)


@contextmanager
def delta_lake_required(what: str, advice: str) -> Iterator[None]:
    """Raise InvalidValueError with an advice if Spark does not know the format delta."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error) or f": {DELTA}." not in str(error):
            raise
        raise InvalidValueError(
            f"{what} need Delta Lake in Spark, which this session does not have: {advice}, or add Delta Lake to the session"
        ) from error
