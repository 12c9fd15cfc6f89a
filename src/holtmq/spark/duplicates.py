"""Messages that a broker delivered twice, because a connection was lost between the spool and the acknowledgement."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def without_duplicates(rows: DataFrame) -> DataFrame:
    """Remove the further copies of redelivered messages. Only messages with an id can be recognised."""
    if not {"redelivered", "message_id", "source_queue"} <= {*rows.columns}:
        return rows
    redelivered = rows.where("redelivered and message_id is not null").select("source_queue", "message_id").distinct()
    if redelivered.isEmpty():
        return rows
    suspects = rows.join(F.broadcast(redelivered), ["source_queue", "message_id"], "left_semi")
    others = rows.join(F.broadcast(redelivered), ["source_queue", "message_id"], "left_anti")
    # all other columns must be equal: different messages may share an id, such as that of an order
    same = [name for name in rows.columns if name not in ("redelivered", "received_at")]
    copies = Window.partitionBy(*same).orderBy("redelivered", "received_at")
    first = suspects.withColumn("__holtmq_copy", F.row_number().over(copies)).where("__holtmq_copy = 1").drop("__holtmq_copy")
    return others.unionByName(first)
