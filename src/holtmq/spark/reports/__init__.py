"""Reports over traffic: what was published, where it went, what nobody got, which bindings did nothing."""

from holtmq.spark.reports.measure import report
from holtmq.spark.reports.outcome import Report

__all__ = ["Report", "report"]
