"""The data source that `register` adds to Spark under the name "amqp"."""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.batch import QueueReader
from holtmq.spark.amqp.columns import SCHEMA
from holtmq.spark.amqp.offset_column import STREAM_SCHEMA
from holtmq.spark.amqp.offset_options import reads_streams
from holtmq.spark.amqp.reading import QUEUES, STREAM_QUEUES
from holtmq.spark.amqp.stream import QueueStreamReader
from holtmq.spark.amqp.stream_queue_follower import StreamQueueFollower
from holtmq.spark.amqp.stream_queue_reader import StreamQueueReader
from holtmq.spark.amqp.writer import BatchWriter, StreamWriter
from holtmq.spark.connect import is_connect
from holtmq.spark.job_announcement import SETTING

APPLICATION = str(uuid.uuid4())
"""What identifies this process, if it is an application."""


class AmqpSource(DataSource):
    """Readers and writers for an AMQP broker. Spark creates them on the driver and sends them to the executors."""

    # Spark runs a source in short-lived processes without a session, which know of it what `register_source` adds to the class
    application = ""
    """What identifies an application."""
    announce: str | None = None
    """The setting of the session, for uses without the option `announce`."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        """Return the columns. Spark asks for them in `load()`, where wrong options are therefore refused."""
        options = self._given()
        is_for_streams = reads_streams(options)
        (STREAM_QUEUES if is_for_streams else QUEUES).require_loadable(options)
        return STREAM_SCHEMA if is_for_streams else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._given()
        return (StreamQueueReader if reads_streams(options) else QueueReader)(options, self.application)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._given()
        return StreamQueueFollower(options) if reads_streams(options) else QueueStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001
        if overwrite:
            raise InvalidValueError("published messages can't be overwritten: expected mode append, got overwrite")
        writer = BatchWriter(self._given(), schema, self.application)
        writer.announce_start()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802
        return StreamWriter(self._given(), schema, self.application)

    def _given(self) -> dict[str, str]:
        """Return the options, with the setting of the session for one that is missing."""
        options = dict(self.options)
        if self.announce is None or any(name.lower() == "announce" for name in options):
            return options
        return {**options, "announce": self.announce}


def register_source(spark: SparkSession) -> None:
    """Add the format to a session, and make a classic session the active one of this thread. Runs on the driver."""
    attributes = {"application": APPLICATION, "announce": spark.conf.get(SETTING, None)}
    # a class without a module is sent to the processes with its attributes
    spark.dataSource.register(type("ApplicationSource", (AmqpSource,), {**attributes, "__module__": "__main__"}))
    if is_connect(spark):
        return
    java = spark.sparkContext._jvm
    assert java is not None
    java.SparkSession.setActiveSession(spark._jsparkSession)
