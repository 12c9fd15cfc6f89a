"""The data pipeline on Apache Spark: the same topology and the same router over any number of messages."""

from holtmq.spark.amqp.source import register
from holtmq.spark.archives import archive, compact
from holtmq.spark.comparison import Comparison, compare
from holtmq.spark.deliveries import route
from holtmq.spark.messages import Columns
from holtmq.spark.publishing import publish
from holtmq.spark.replays import Choice, replay
from holtmq.spark.reports import Report, report
from holtmq.spark.routing_job import route_job
from holtmq.spark.sessions import session

__all__ = [
    "Choice", "Columns", "Comparison", "Report", "archive", "compact", "compare", "publish", "register", "replay", "report",
    "route", "route_job", "session",
]  # fmt: skip
