"""The time of a message: that of its publisher or, without one, the time at which it was received."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from holtmq.spark.message_columns import MessageColumns, quote_name

TIME_COLUMNS = ("timestamp", "received_at")


def message_time(messages: DataFrame) -> Column | None:
    """Return a Spark expression for the time of a message, or None if the messages have no time column."""
    columns = MessageColumns.of(messages)
    found = [
        messages[quote_name(field.name)].cast("timestamp")
        for field in map(columns.find, TIME_COLUMNS)
        if field is not None and isinstance(field.dataType, TimestampType | TimestampNTZType | DateType)
    ]
    return F.coalesce(*found) if found else None
