"""The data pipeline on Apache Spark: the same topology and the same router over any number of messages."""

from holtmq.spark.amqp.source import register
from holtmq.spark.archive import archive, compact
from holtmq.spark.compare import Comparison, compare
from holtmq.spark.messages import Columns
from holtmq.spark.publish import publish
from holtmq.spark.replay import Choice, replay
from holtmq.spark.report import Report, report
from holtmq.spark.route import route
from holtmq.spark.route_job import route_job
from holtmq.spark.session import session

__all__ = [
    "Choice", "Columns", "Comparison", "Report", "archive", "compact", "compare", "publish", "register", "replay", "report",
    "route", "route_job", "session",
]  # fmt: skip
