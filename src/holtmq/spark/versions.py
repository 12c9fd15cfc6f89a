"""The versions of Spark: which this package runs on, and what needs a newer one."""

from __future__ import annotations

import re
from typing import TypeAlias

import pyspark

from holtmq.errors import HoltmqError

Version: TypeAlias = tuple[int, int]
OLDEST: Version = (4, 0)
AMQP: Version = (4, 3)
"""The first version whose Python data sources can limit a micro-batch and end with `availableNow`."""


class SparkVersionError(HoltmqError):
    """The installed Spark is too old."""


def spark_version() -> Version:
    """Return major and minor version of the installed PySpark."""
    major, minor = re.findall(r"\d+", pyspark.__version__)[:2]
    return int(major), int(minor)


def require_spark(needed: Version, what: str) -> None:
    """Raise SparkVersionError if the installed PySpark is older than a feature needs."""
    if spark_version() < needed:
        raise SparkVersionError(
            f"{what} needs Spark {needed[0]}.{needed[1]} or later, found {pyspark.__version__}: "
            f"pip install 'pyspark>={needed[0]}.{needed[1]}'"
        )
