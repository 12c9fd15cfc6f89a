"""The data source that `register` makes known to Spark as "amqp"."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.batch import QueueReader
from holtmq.spark.amqp.columns import SCHEMA
from holtmq.spark.amqp.stream import QueueStreamReader
from holtmq.spark.amqp.writer import BatchWriter, StreamWriter


class AmqpSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> QueueReader:
        return QueueReader(dict(self.options))

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802
        return QueueStreamReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001
        if overwrite:
            raise InvalidValueError("what was published can't be overwritten: expected mode append, got overwrite")
        return BatchWriter(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802
        return StreamWriter(dict(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make `format("amqp")` known: `spark.read`, `readStream`, `write` and `writeStream`.

    To write, Spark looks for the name in the session that is active in the calling thread, so that is made this one. In
    another thread, call this again.
    """
    spark.dataSource.register(AmqpSource)
    java = spark.sparkContext._jvm
    assert java is not None
    java.SparkSession.setActiveSession(spark._jsparkSession)
