"""publish(): write a DataFrame to a broker as `format("amqp")` does, and return the counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame

from holtmq.client.publisher import RETRIES, WINDOW, ReceivedConfirms
from holtmq.spark.amqp.amqp_options import BrokerOptions, PublishOptions
from holtmq.spark.amqp.message_numbers import QUERY_ID
from holtmq.spark.amqp.row_publisher import RowPublisher
from holtmq.spark.arguments import require_messages
from holtmq.spark.connect import is_connect
from holtmq.spark.deprecated_names import accept_old_keywords
from holtmq.spark.job_announcement import announced, files_of

CONFIRMS = "confirmed long, returned long, retried long, first_return string"
CONFIRMS_ARROW = pa.schema(
    [("confirmed", pa.int64()), ("returned", pa.int64()), ("retried", pa.int64()), ("first_return", pa.string())]
)


@accept_old_keywords()
def publish(
    messages: DataFrame,
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
    exchange: str | None = None,
    mandatory: bool = True,
    persistent: bool = True,
    window: int = WINDOW,
    retries: int = RETRIES,
    rate: int = 0,
    publisher: str | None = None,
    announce: str | None = None,
) -> ReceivedConfirms:
    """Publish all rows and return how many were confirmed, returned and retried. Runs the job.

    The driver checks the options and the columns. The executors connect to the broker and publish; each task waits for its
    confirms. A task that fails runs again and publishes again: messages are published at least once.

    Args:
        messages: The rows, with the columns of the AMQP source. `routing_key` and `body` are required.
        url: The broker: `amqp://host:port/vhost` or `amqps://…`.
        user: The user name (default: that of the URL, or guest).
        password: The password. Prefer `password_env` or `password_file`.
        password_env: The environment variable that contains the password on the executors.
        password_file: The file that contains the password on the executors.
        ca_file: The certificates to trust, for amqps.
        cert_file: The client's certificate, for amqps.
        key_file: The key of the client's certificate, for amqps.
        verify: Whether to verify the broker's certificate.
        exchange: The exchange for all messages (default: the column `exchange`).
        mandatory: Whether to count messages that reach no queue as returned.
        persistent: Whether messages without a delivery mode are persistent.
        window: The maximum number of unconfirmed messages per task.
        retries: The number of retries after a lost connection or a negative confirm.
        rate: The maximum message rate of each task, in messages per second (0: no limit).
        publisher: The name under which a HoltMQ stream recognises messages that are published again, and stores them once.
        announce: The HTTP API of a broker whose Pipeline page lists this run, such as `http://127.0.0.1:15672`, or "" for none
            (default: the setting `spark.holtmq.announce` of the session, and without it the job's broker, if it is HoltMQ).
            Within a micro-batch of a stream, nothing is announced.
    """
    require_messages("messages", messages)
    broker = BrokerOptions(
        url=url, user=user, password=password, password_env=password_env, password_file=password_file, ca_file=ca_file,
        cert_file=cert_file, key_file=key_file, verify=verify,
    )  # fmt: skip
    options = PublishOptions(
        exchange=exchange, mandatory=mandatory, persistent=persistent, window=window, retries=retries, rate=rate,
        publisher=publisher,
    )  # fmt: skip
    if announce is None and _is_in_micro_batch(messages):  # there may be thousands of them
        announce = ""
    spark, confirms = messages.sparkSession, ReceivedConfirms()
    with announced(spark, broker, announce, "publish", lambda: confirms.confirmed, read=lambda: files_of(messages)):
        confirms = publish_rows(messages, broker, options)
    return confirms


def _is_in_micro_batch(messages: DataFrame) -> bool:
    spark = messages.sparkSession
    return not is_connect(spark) and spark.sparkContext.getLocalProperty(QUERY_ID) is not None


def publish_rows(messages: DataFrame, broker: BrokerOptions, options: PublishOptions) -> ReceivedConfirms:
    """Publish all rows with these options. Runs the job; the executors publish, and the driver adds up the counts."""
    publisher = RowPublisher(broker, options, messages.schema)

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([asdict(publisher.send(batches))], CONFIRMS_ARROW)

    total = ReceivedConfirms()
    for row in messages.mapInArrow(send, CONFIRMS).collect():
        total.confirmed += row["confirmed"]
        total.returned += row["returned"]
        total.retried += row["retried"]
        total.first_return = total.first_return or row["first_return"]
    return total
