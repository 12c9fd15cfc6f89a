"""The data pipeline on Apache Spark: the topology and the router of the broker, applied to any number of messages.

Names are imported when they are first used. A task that routes on an executor therefore imports neither the AMQP source nor
the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holtmq.spark.amqp.stream_metrics import StreamMetrics, stream_metrics
    from holtmq.spark.archive_formats import read_archive
    from holtmq.spark.archives import archive
    from holtmq.spark.changing_topology import route_batches
    from holtmq.spark.compaction import compact
    from holtmq.spark.comparison import Comparison, compare
    from holtmq.spark.deliveries import route
    from holtmq.spark.draining import drain
    from holtmq.spark.publishing import publish
    from holtmq.spark.registration import register
    from holtmq.spark.replays import MessageFilter, replay
    from holtmq.spark.reports import Report, report
    from holtmq.spark.routing_job import route_job
    from holtmq.spark.routing_request import Columns
    from holtmq.spark.sessions import session

__all__ = [
    "Columns", "Comparison", "MessageFilter", "Report", "StreamMetrics", "archive", "compact", "compare", "drain", "publish",
    "read_archive", "register", "replay", "report", "route", "route_batches", "route_job", "session", "stream_metrics",
]  # fmt: skip
_MODULES = {
    "Columns": "routing_request",
    "Comparison": "comparison",
    "MessageFilter": "replays",
    "Report": "reports",
    "StreamMetrics": "amqp.stream_metrics",
    "archive": "archives",
    "compact": "compaction",
    "compare": "comparison",
    "drain": "draining",
    "publish": "publishing",
    "read_archive": "archive_formats",
    "register": "registration",
    "replay": "replays",
    "report": "reports",
    "route": "deliveries",
    "route_batches": "changing_topology",
    "route_job": "routing_job",
    "session": "sessions",
    "stream_metrics": "amqp.stream_metrics",
}
_NEEDS_AMQP = {"StreamMetrics", "archive", "drain", "stream_metrics"}
"""Names that need a newer Spark than the others."""
_RENAMED = {"Choice": "MessageFilter"}
"""Names of 0.1 that still work, with a DeprecationWarning."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name in _RENAMED:
        from holtmq.spark.deprecated_names import warn_renamed

        warn_renamed(f"holtmq.spark.{name}", _RENAMED[name])
        return __getattr__(_RENAMED[name])
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holtmq.spark.versions import AMQP, OLDEST, require_spark

    require_spark(AMQP if name in _NEEDS_AMQP else OLDEST, f"{__name__}.{name}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
