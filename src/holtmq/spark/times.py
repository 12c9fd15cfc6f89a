"""When a message was: the time that its publisher gave it or, where there is none, when it was received."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

CANDIDATES = ("timestamp", "received_at")


def message_time(messages: DataFrame) -> Column | None:
    """The time of a message; None where no column tells it."""
    found = [
        messages[name].cast("timestamp")
        for name in CANDIDATES
        if name in messages.columns and isinstance(messages.schema[name].dataType, TimestampType | TimestampNTZType | DateType)
    ]
    return F.coalesce(*found) if found else None
