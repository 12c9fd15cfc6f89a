"""Spark Connect: sessions whose driver is a server, with neither a SparkContext nor Java on this side."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holtmq.errors import HoltmqError


class ConnectError(HoltmqError):
    """A function needs a classic session."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def require_classic(spark: SparkSession, what: str) -> None:
    """Raise ConnectError for a session of Spark Connect."""
    if is_connect(spark):
        raise ConnectError(
            f"{what} runs on the driver and does not support Spark Connect: use a classic session, such as session('local[2]')"
        )
