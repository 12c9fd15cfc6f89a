"""Where a job gets its messages from: files, a table, or a stream queue of a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holtmq.cli.broker_login import login_of
from holtmq.cli.spark_run import pairs
from holtmq.client.address import without_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
SCHEMES = ("amqp://", "amqps://")


def stream_options(command: Command) -> Command:
    """Add the options of jobs that can read a stream queue."""
    for option in (
        click.option("--to", "end", metavar="POSITION", help="Where to end in the stream (default: its end)."),
        click.option(
            "--from",
            "start",
            metavar="POSITION",
            help="Where to start in a stream: earliest (default), latest, an offset, a time (UTC), or a time span such as 24h.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class MessageSource:
    """The argument SOURCE of a job, and the options that say how to read it."""

    place: str
    """A folder, a table, or the AMQP URL of a broker."""
    format: str
    queue: str | None = None
    start: str | None = None
    end: str | None = None
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.is_broker and self.queue is None:
            raise click.UsageError("SOURCE is the URL of a broker: name the stream queue to read with --queue")
        if not self.is_broker and (self.start is not None or self.end is not None):
            raise click.UsageError("--from and --to are for stream queues: SOURCE must be the AMQP URL of a broker")

    @property
    def is_broker(self) -> bool:
        return self.place.startswith(SCHEMES)

    def __str__(self) -> str:
        return f"{without_password(self.place)}, stream {self.queue}" if self.is_broker else self.place

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the messages in any format that Spark reads."""
        from holtmq.spark.input_formats import read_messages

        if self.is_broker:
            return self._read_stream(spark)
        return read_messages(spark, self.place, self.format, dict(pairs(self.options)))

    def read_archive(self, spark: SparkSession) -> DataFrame:
        """Return the messages of an archive, or else those that `read` returns."""
        from holtmq.spark.archive_formats import ARCHIVE_FORMATS, read_archive

        if self.is_broker or self.format not in ARCHIVE_FORMATS:
            return self.read(spark)
        return read_archive(spark, self.place, format=self.format)

    def _read_stream(self, spark: SparkSession) -> DataFrame:
        from holtmq.spark import register

        register(spark)
        user, password = login_of(self.place, None)
        given = {
            "url": self.place, "user": user, "password": password, "queue": self.queue,
            "startingOffsets": self.start or "earliest", "endingOffsets": self.end or "latest", **dict(pairs(self.options)),
        }  # fmt: skip
        return spark.read.format("amqp").options(**given).load()
