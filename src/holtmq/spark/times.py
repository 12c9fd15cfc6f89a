"""The time of a message: that of its publisher or, without one, the time at which it was received."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

TIME_COLUMNS = ("timestamp", "received_at")


def message_time(messages: DataFrame) -> Column | None:
    """Return a Spark expression for the time of a message, or None if the messages have no time column."""
    found = [
        messages[name].cast("timestamp")
        for name in TIME_COLUMNS
        if name in messages.columns and isinstance(messages.schema[name].dataType, TimestampType | TimestampNTZType | DateType)
    ]
    return F.coalesce(*found) if found else None
