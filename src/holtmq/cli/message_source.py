"""Where a job gets its messages from: files, a table, or stream queues of a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holtmq.cli.broker_login import Login
from holtmq.cli.spark_run import pairs
from holtmq.client.address import Address, without_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holtmq.spark.amqp.amqp_options import BrokerOptions

Command = TypeVar("Command", bound=Callable[..., Any])
SCHEMES = ("amqp://", "amqps://")

queue_option = click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Stream queue to read, if SOURCE is the URL of a broker. Can be repeated.",
)


def pattern_options(command: Command) -> Command:
    """Add the options that name queues by a pattern."""
    for option in (
        click.option(
            "--management-url",
            metavar="URL",
            help="HTTP API that lists the queues for --queue-pattern (default: port 15672 of the broker).",
        ),
        click.option(
            "--queue-pattern",
            metavar="REGEX",
            help="Read all queues whose whole name matches, such as the partitions of a super stream: 'events-[0-9]+'.",
        ),
    ):
        command = option(command)
    return command


loss_option = click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Skip messages of a stream queue that were removed before they were read, or are damaged. Without it, the job fails.",
)


def stream_options(command: Command) -> Command:
    """Add the options of jobs that can read stream queues, except for `--queue`."""
    for option in (
        click.option("--to", "end", metavar="POSITION", help="Where to end in the stream (default: its end)."),
        click.option(
            "--from",
            "start",
            metavar="POSITION",
            help="Where to start in a stream: earliest (default), latest, an offset, a time (UTC), or a time span such as 24h.",
        ),
        loss_option,
        pattern_options,
    ):
        command = option(command)
    return command


def is_broker(source: str) -> bool:
    """Return whether SOURCE is the URL of a broker, and not a folder or a table."""
    return source.startswith(SCHEMES)


@dataclass(frozen=True, slots=True)
class MessageSource:
    """The argument SOURCE of a job, and the options that say how to read it."""

    place: str
    """A folder, a table, or the AMQP URL of a broker."""
    format: str
    queues: tuple[str, ...] = ()
    pattern: str | None = None
    management_url: str | None = None
    start: str | None = None
    end: str | None = None
    options: tuple[str, ...] = ()
    login: Login = field(default_factory=Login)
    allow_data_loss: bool = False
    broker: BrokerOptions | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if is_broker(self.place):
            if bool(self.queues) == (self.pattern is not None):
                found = "both" if self.queues else "neither"
                raise click.UsageError(
                    f"SOURCE is the URL of a broker: name its stream queues with --queue or --queue-pattern, got {found}"
                )
            object.__setattr__(self, "broker", self.login.broker(self.place))
            return
        for name, value in {
            "--queue": self.queues,
            "--queue-pattern": self.pattern,
            "--management-url": self.management_url,
            "--from": self.start,
            "--to": self.end,
            "--allow-data-loss": self.allow_data_loss,
        }.items():
            if value:
                raise click.UsageError(f"{name} is for stream queues: SOURCE must be the AMQP URL of a broker")

    def __str__(self) -> str:
        if not is_broker(self.place):
            return self.place
        streams = f"streams {self.pattern or ', '.join(self.queues)}" if len(self.queues) != 1 else f"stream {self.queues[0]}"
        return f"{without_password(self.place)}, {streams}"

    @property
    def vhost(self) -> str | None:
        """The virtual host of the stream queues, or None if the messages come from elsewhere."""
        return Address.parse(self.place).vhost if is_broker(self.place) else None

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the messages in any format that Spark reads."""
        from holtmq.spark.input_formats import read_messages

        if is_broker(self.place):
            return self._read_streams(spark)
        return read_messages(spark, self.place, self.format, dict(pairs(self.options)))

    def read_archive(self, spark: SparkSession) -> DataFrame:
        """Return the messages of an archive, or else those that `read` returns."""
        from holtmq.spark.archive_formats import ARCHIVE_FORMATS, read_archive

        if is_broker(self.place) or self.format not in ARCHIVE_FORMATS:
            return self.read(spark)
        return read_archive(spark, self.place, format=self.format)

    def _read_streams(self, spark: SparkSession) -> DataFrame:
        from holtmq.spark import register
        from holtmq.spark.amqp.amqp_options import QueueOptions
        from holtmq.spark.amqp.fixed_offsets import fix_offsets
        from holtmq.spark.connect import is_connect
        from holtmq.spark.job_announcement import NOWHERE

        register(spark)
        assert self.broker is not None, "the source is one"
        given = {
            **self.broker.to_spark(),
            **QueueOptions.choose(self.queues, self.pattern, self.management_url).to_spark(),
            "startingOffsets": self.start or "earliest",
            "endingOffsets": self.end or "latest",
            "failOnDataLoss": str(not self.allow_data_loss).lower(),
            "announce": NOWHERE[0],  # the job announces itself
            **dict(pairs(self.options)),
        }
        if not is_connect(spark):  # whose client may not reach the broker
            given = fix_offsets(given)
        return spark.read.format("amqp").options(**given).load()
