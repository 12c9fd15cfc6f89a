"""The data pipeline on Apache Spark: the topology and the router of the broker, applied to any number of messages."""

from holtmq.spark.amqp.source import register
from holtmq.spark.archives import archive
from holtmq.spark.compaction import compact
from holtmq.spark.comparison import Comparison, compare
from holtmq.spark.deliveries import route
from holtmq.spark.publishing import publish
from holtmq.spark.replays import MessageFilter, replay
from holtmq.spark.reports import Report, report
from holtmq.spark.routing_job import route_job
from holtmq.spark.sessions import session
from holtmq.spark.signature import Columns

__all__ = [
    "Columns", "Comparison", "MessageFilter", "Report", "archive", "compact", "compare", "publish", "register", "replay",
    "report", "route", "route_job", "session",
]  # fmt: skip
