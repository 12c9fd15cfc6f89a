"""Traffic reports: what was published, which queues it reached, what was unroutable, which bindings never matched."""

from holtmq.spark.reports.measure import report
from holtmq.spark.reports.outcome import Report

__all__ = ["Report", "report"]
