"""drain(): the messages of a queue as DataFrames, acknowledged after they are written.

A batch source that acknowledges cannot be safe. Spark calls it when a plan is read, not when the result is stored: it reads a
plan once per action, reads parts of it for `show` and `limit`, and runs a task again after a failure or speculatively. So the
work comes to the messages instead. Each batch of them is on disk in the spool while `write` runs, can be read any number of
times with the same result, and is acknowledged when `write` has returned.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.amqp_options import PREFETCH, RECEIVERS, SEGMENT_ROWS, BrokerOptions, StreamOptions
from holtmq.spark.amqp.source import register_source
from holtmq.spark.amqp.stream_metrics import messages_read
from holtmq.spark.arguments import require_type
from holtmq.spark.connect import require_classic
from holtmq.spark.job_announcement import announced, unannounced
from holtmq.spark.new_thread import in_new_thread


@dataclass(frozen=True, slots=True)
class DrainSummary:
    """The result of drain()."""

    messages: int
    batches: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        return asdict(self)


def drain(
    spark: SparkSession,
    queue: str | Sequence[str],
    write: Callable[[DataFrame], object],
    *,
    url: str,
    user: str | None = None,
    password: str | None = None,
    password_env: str | None = None,
    password_file: str | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    verify: bool = True,
    spool: str | None = None,
    receivers: int = RECEIVERS,
    prefetch: int = PREFETCH,
    max_messages_per_trigger: int | None = None,
    segment_rows: int = SEGMENT_ROWS,
    announce: str | None = None,
) -> DrainSummary:
    """Pass the messages that are in a queue now to `write`, batch by batch, and remove those that are written.

    At least once: if `write` raises an exception, or the application is killed, the messages of that batch stay in the queue.
    The exception is raised here. The driver receives the messages and calls `write`, whose jobs run on the executors.
    Raise ConnectError for a session of Spark Connect, whose driver is elsewhere.

    Args:
        spark: The session that runs the jobs.
        queue: The queue, or several.
        write: A function that stores a DataFrame of messages. It may read the DataFrame as often as it likes. It is called
            once per batch, so it must append to what it has written before.
        url: The broker: `amqp://host:port/vhost` or `amqps://…`.
        user: The user name (default: that of the URL, or guest).
        password: The password. Prefer `password_env` or `password_file`.
        password_env: The environment variable that contains the password on the driver.
        password_file: The file that contains the password on the driver.
        ca_file: The certificates to trust, for amqps.
        cert_file: The client's certificate, for amqps.
        key_file: The key of the client's certificate, for amqps.
        verify: Whether to verify the broker's certificate.
        spool: The folder for messages that are not written yet (default: a temporary one, which only a local master shares).
        receivers: The number of connections that consume.
        prefetch: The maximum number of unacknowledged messages per connection.
        max_messages_per_trigger: The maximum size of a batch (default: half of what the receivers prefetch).
        segment_rows: The maximum number of messages that one task reads.
        announce: The HTTP API of a broker whose Pipeline page lists this run, such as `http://127.0.0.1:15672`, or "" for none
            (default: the setting `spark.holtmq.announce` of the session, and without it the job's broker, if it is HoltMQ).
    """
    require_classic(spark, "drain")
    names = _names(queue)
    if not callable(write):
        raise InvalidValueError(f"write must be a function of a DataFrame, got {write!r}")
    broker = BrokerOptions(
        url=url, user=user, password=password, password_env=password_env, password_file=password_file, ca_file=ca_file,
        cert_file=cert_file, key_file=key_file, verify=verify,
    )  # fmt: skip
    stream = StreamOptions(
        queue=queue if isinstance(queue, str) else None, queues=None if isinstance(queue, str) else ",".join(names),
        receivers=receivers, prefetch=prefetch, max_messages_per_trigger=max_messages_per_trigger,
        segment_rows=segment_rows, spool=spool,
    )  # fmt: skip
    batches = 0
    errors: list[BaseException] = []
    query: StreamingQuery | None = None

    def process(rows: DataFrame, _: int) -> None:
        nonlocal batches
        if not rows.rdd.getNumPartitions():  # the batch that only acknowledges the one before it
            return
        try:
            write(rows)
        except BaseException as error:
            errors.append(error)
            raise
        batches += 1

    register_source(spark)
    messages = spark.readStream.format("amqp").options(**unannounced(broker), **stream.to_spark()).load()
    checkpoint = Path(tempfile.mkdtemp(prefix="holtmq-drain-"))
    try:
        writer = messages.writeStream.foreachBatch(process).option("checkpointLocation", checkpoint.as_uri())
        writer = writer.queryName(f"drain of {', '.join(names)}").trigger(availableNow=True)
        with announced(spark, broker, announce, "drain", lambda: messages_read(query) if query else 0, queue=", ".join(names)):
            query = writer.start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                if errors:
                    raise errors[0] from error
                raise
            finally:
                in_new_thread(query.stop)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return DrainSummary(messages_read(query), batches)


def _names(queue: str | Sequence[str]) -> list[str]:
    """Return the names of the queues. Raise InvalidValueError for a list that the option `queues` cannot express."""
    if isinstance(queue, str):
        return [queue]
    require_type("queue", queue, Iterable, "the name of a queue, or a list of names")
    names = list(queue)
    for name in names:
        require_type("queue", name, str, "the name of a queue, or a list of names")
        if "," in name or name != name.strip():
            raise InvalidValueError(
                f"queue contains the name {name!r}: in a list, expected names without commas, and without spaces around them. "
                "Drain that queue alone"
            )
    return names
