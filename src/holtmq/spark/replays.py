"""replay(): publish messages of an archive again, selected by time, key, queue and headers, and marked with a header."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from holtmq.client.publisher import RETRIES, WINDOW, ReceivedConfirms
from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.amqp_options import BrokerOptions, PublishOptions
from holtmq.spark.amqp.columns import RAW_COLUMNS, SCHEMA
from holtmq.spark.amqp.encoded_properties import INVALID_HEADERS
from holtmq.spark.amqp.message_encoder import require_message_columns
from holtmq.spark.arguments import require_messages, require_type
from holtmq.spark.deliveries import route
from holtmq.spark.deprecated_names import OldToJson, accept_old_keywords
from holtmq.spark.job_announcement import announced, files_of
from holtmq.spark.message_columns import MessageColumns, quote_name
from holtmq.spark.publishing import publish_rows
from holtmq.spark.routing_request import Columns
from holtmq.spark.times import message_time
from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange, Queue, Topology

SELECTED, READABLE = "selected", "__holtmq_readable_headers"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages of an archive to select. A message must meet all conditions that are not None."""

    since: datetime | None = None
    """The earliest time of a message."""
    until: datetime | None = None
    """The time before which a message must be."""
    key: str | None = None
    """A pattern for the routing key, as in a binding of a topic exchange: `orders.#.premium`."""
    queue: str | Sequence[str] | None = None
    """The queue, or the queues, from which a message was archived."""
    headers: Mapping[str, FieldValue] | None = None
    """Headers that a message must have with these values, as in a binding of a headers exchange."""

    def select(self, archive: DataFrame) -> DataFrame:
        """Return the selected messages. Runs on the driver, like `route`; the executors apply the result."""
        selected = archive
        if self.since is not None or self.until is not None:
            time = message_time(archive)
            if time is None:
                raise InvalidValueError(
                    "since and until need a column timestamp or received_at of type timestamp or date, "
                    f"found the columns {', '.join(archive.columns)}"
                )
            selected = selected.where(time >= F.lit(self.since)) if self.since is not None else selected
            selected = selected.where(time < F.lit(self.until)) if self.until is not None else selected
        if self.queue is not None:
            if "source_queue" not in archive.columns:
                raise InvalidValueError(f"queue needs a column source_queue, found the columns {', '.join(archive.columns)}")
            queues = [self.queue] if isinstance(self.queue, str) else list(self.queue)
            selected = selected.where(F.col("source_queue").isin(queues))
        if self.key is not None or self.headers:
            readable = _with_readable_headers(selected)
            columns = Columns(headers=READABLE)
            routed = route(readable, self._topology(), exchange=SELECTED, columns=columns, unroutable="drop")
            selected = routed.where("queue is not null").drop("queue", "reason", READABLE)
        return selected

    def _topology(self) -> Topology:
        """Return the conditions as bindings, so that they mean what they mean to a broker."""
        by_key = Binding(SELECTED, "headers", self.key if self.key is not None else "#", destination_type="exchange")
        by_headers = Binding("headers", SELECTED, "", {"x-match": "all-with-x", **(self.headers or {})})
        exchanges = (Exchange(SELECTED, "topic"), Exchange("headers", "headers"))
        return Topology(exchanges, (Queue(SELECTED),), (by_key, by_headers))


@dataclass(frozen=True, slots=True)
class ReplaySummary(OldToJson):
    """The result of a replay."""

    replay_id: str | None
    """The id in the header of each message, or None for an exact replay."""
    published: ReceivedConfirms

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        return {"replay_id": self.replay_id, **asdict(self.published)}


@accept_old_keywords(choice="where")
def replay(
    archive: DataFrame,
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
    where: MessageFilter = MessageFilter(),  # noqa: B008  # frozen
    exchange: str | None = None,
    rate: int = 0,
    replay_id: str | None = None,
    exact: bool = False,
    parallel: int = 2,
    mandatory: bool = True,
    persistent: bool = True,
    window: int = WINDOW,
    retries: int = RETRIES,
    announce: str | None = None,
) -> ReplaySummary:
    """Publish messages of an archive again, with their routing keys and properties. Runs the job.

    Each message gets a header `x-holtmq-replay` with the id of the replay. The property user_id is removed, because a broker
    accepts it only from that user, and so are the headers by which a publisher numbered messages for a stream, which would take
    them for messages that it has. Everything else is sent as it was received, byte for byte, if the archive has the columns
    `routing_key_raw` and `properties_raw`. A column that was changed since wins over the raw ones.

    The driver checks the options and builds the filter. The executors read the archive, connect to the broker and publish.

    Args:
        archive: The messages, with the columns of the AMQP source.
        url: The broker: `amqp://host:port/vhost` or `amqps://…`.
        user: The user name (default: that of the URL, or guest).
        password: The password. Prefer `password_env` or `password_file`.
        password_env: The environment variable that contains the password on the executors.
        password_file: The file that contains the password on the executors.
        ca_file: The certificates to trust, for amqps.
        cert_file: The client's certificate, for amqps.
        key_file: The key of the client's certificate, for amqps.
        verify: Whether to verify the broker's certificate.
        where: The messages to publish (default: all).
        exchange: The exchange to publish to (default: that of each message).
        rate: The maximum message rate of all tasks together, in messages per second (0: no limit).
        replay_id: The id of this replay (default: a random one).
        exact: Whether to send messages exactly as they were received: without the header, with their user_id, and without an
            added delivery mode.
        parallel: The maximum number of tasks that publish.
        mandatory: Whether to count messages that reach no queue as returned.
        persistent: Whether messages without a delivery mode are persistent.
        window: The maximum number of unconfirmed messages per task.
        retries: The number of retries after a lost connection or a negative confirm.
        announce: The HTTP API of a broker whose Pipeline page lists this run, such as `http://127.0.0.1:15672`, or "" for none
            (default: the setting `spark.holtmq.announce` of the session, and without it the job's broker, if it is HoltMQ).
    """
    require_messages("archive", archive, "read_archive(spark, path)")
    require_type("where", where, MessageFilter, "a MessageFilter, such as MessageFilter(key='orders.#')")
    broker = BrokerOptions(
        url=url, user=user, password=password, password_env=password_env, password_file=password_file, ca_file=ca_file,
        cert_file=cert_file, key_file=key_file, verify=verify,
    )  # fmt: skip
    if parallel < 1:
        raise InvalidValueError(f"parallel must be a whole number of at least 1, got {parallel!r}")
    if exact and replay_id is not None:
        raise InvalidValueError("an exact replay does not mark messages: expected either exact or replay_id, got both")
    replay_id = None if exact else replay_id or str(uuid.uuid4())
    tasks = min(parallel, rate) if rate > 0 else parallel
    options = PublishOptions(
        exchange=exchange, mandatory=mandatory, persistent=persistent and not exact, window=window, retries=retries,
        rate=rate // tasks if rate > 0 else rate, mark=replay_id, keep_numbers=exact,
    )  # fmt: skip
    archive = _with_our_names(archive)
    require_message_columns(archive.columns)
    selected = where.select(archive).select(*(name for name in archive.columns if name in SCHEMA.names))
    if exact:
        selected = _require_raw(selected)
    confirms = ReceivedConfirms()
    with announced(
        archive.sparkSession, broker, announce, "replay", lambda: confirms.confirmed, read=lambda: files_of(archive)
    ):
        confirms = publish_rows(selected.coalesce(tasks), broker, options)
    return ReplaySummary(replay_id, confirms)


def _with_readable_headers(archive: DataFrame) -> DataFrame:
    """Add the headers for a filter. Headers that cannot be read are null there: a pattern for keys does not depend on them."""
    field = MessageColumns.of(archive).find("headers")
    if field is None:
        return archive.withColumn(READABLE, F.lit(None))
    headers = archive[quote_name(field.name)]
    if isinstance(field.dataType, StringType):
        headers = F.when(~headers.startswith(f'["{INVALID_HEADERS}"'), headers)
    return archive.withColumn(READABLE, headers)


def _with_our_names(archive: DataFrame) -> DataFrame:
    """Return the messages with our names for the columns that Spark finds by them."""
    columns = MessageColumns.of(archive)
    found = {name: columns.find(name) for name in SCHEMA.names}
    renamed = {field.name: name for name, field in found.items() if field is not None and field.name != name}
    return archive.withColumnsRenamed(renamed) if renamed else archive


def _require_raw(messages: DataFrame) -> DataFrame:
    """Raise InvalidValueError if the raw columns are missing. The job fails if they are null in a row."""
    missing = [name for name in RAW_COLUMNS if name not in messages.columns]
    if missing:
        raise InvalidValueError(
            f"an exact replay needs the column {missing[0]!r}, which the archive does not have: it was written by an earlier "
            "version, or the column was dropped. Replay without exact"
        )
    null = "null in a row of an earlier version: select the rows in which it is not null, or replay without exact"
    for name in RAW_COLUMNS:
        text = F.lit(f"an exact replay needs the column {name!r}, which is {null}")
        messages = messages.withColumn(name, F.coalesce(name, F.raise_error(text).cast("binary")))
    return messages
