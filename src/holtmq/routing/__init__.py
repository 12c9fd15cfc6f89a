"""Routing: which queues a message reaches, and why.

Pure and picklable, with the standard library alone: nothing here depends on sockets, files or Spark.
"""

from holtmq.routing.explanation import Explanation
from holtmq.routing.route import Entry, Route
from holtmq.routing.router import Router

__all__ = ["Entry", "Explanation", "Route", "Router"]
