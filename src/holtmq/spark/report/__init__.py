"""Reports over traffic: what was published, where it went, what nobody got, which bindings did nothing."""

from holtmq.spark.report.measure import report
from holtmq.spark.report.outcome import Report

__all__ = ["Report", "report"]
