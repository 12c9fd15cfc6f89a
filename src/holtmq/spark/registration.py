"""register(): the AMQP source and sink, and the SQL functions, for one session."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from holtmq.spark.sql_functions import register_functions
from holtmq.spark.versions import AMQP, require_spark, spark_version
from holtmq.topology import DEFAULT_VHOST, Topology


def register(spark: SparkSession, topology: Topology | str | Path | None = None, *, vhost: str = DEFAULT_VHOST) -> None:
    """Add `format("amqp")` and the SQL functions to a session. Runs on the driver.

    `holtmq_route(TABLE(messages), 'definitions.json')` routes with a definitions file. `holtmq_queues(exchange, routing_key,
    headers)` routes with `topology`, and is added only if there is one.

    For a write, Spark looks up the format in the session that is active in the calling thread. This function therefore makes
    `spark` the active session. Call it once in each thread that writes. It also tells the format the setting
    `spark.holtmq.announce` of the session: call it again after a change of that setting.

    Args:
        spark: The session, classic or Spark Connect.
        topology: The topology for `holtmq_queues`, or the path of a definitions file.
        vhost: The virtual host of the topology.
    """
    if spark_version() >= AMQP:
        from holtmq.spark.amqp.source import register_source

        register_source(spark)
    else:
        spark.dataSource.register(TooOldForAmqp)
    register_functions(spark, Topology.from_definitions(topology) if isinstance(topology, str | Path) else topology, vhost)


class TooOldForAmqp(DataSource):
    """Takes the name "amqp" in a version of Spark without what the source needs, and says so."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        require_spark(AMQP, 'format("amqp")')
        raise AssertionError("registered only if Spark is too old")
