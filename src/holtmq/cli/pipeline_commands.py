"""holtmq pipeline: the jobs on Spark, with a live bar, a summary at the end, and JSON for scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.options import parse_header
from holtmq.cli.output import print_json, show
from holtmq.errors import HoltmqError
from holtmq.topology import DEFAULT_VHOST, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holtmq.cli.spark_progress import SparkProgress
    from holtmq.spark import Comparison, Report

Command = TypeVar("Command", bound=Callable[..., Any])
AFFECTED = 3
"""The exit code of a comparison that found more than was allowed."""
ROWS_SHOWN = 12


class PipelineError(HoltmqError):
    """A job that Spark could not do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a job runs, and how it answers."""

    master: str | None
    conf: tuple[str, ...]
    as_json: bool

    @contextmanager
    def running(self, what: str) -> Iterator[tuple[SparkSession, SparkProgress]]:
        try:
            from holtmq.cli.spark_progress import SparkProgress
            from holtmq.spark import session
        except ImportError as error:
            raise PipelineError(f"the pipeline needs Spark: pip install 'holtmq[spark]' ({error})") from error
        from py4j.protocol import Py4JJavaError
        from pyarrow import ArrowException
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        spark, is_ours = None, SparkSession.getActiveSession() is None
        try:
            spark = session(self.master, app_name=f"holtmq {what}", config=dict(_pairs(self.conf)))
            with SparkProgress(spark, what) as progress:
                yield spark, progress
        except Py4JJavaError as error:
            raise PipelineError(tell_spark_error(str(error.java_exception))) from error
        except (PySparkException, ArrowException) as error:
            raise PipelineError(tell_spark_error(str(error))) from error
        finally:
            if is_ours and spark is not None:
                spark.stop()


def tell_spark_error(text: str) -> str:
    """The line that says what is wrong: ours if there is one, else Spark's first."""
    ours = re.findall(r"^(?:\w+\.)*(?:\w+Error): (.+)$", text, re.MULTILINE)
    return str(ours[-1]) if ours else next((line for line in text.splitlines() if line.strip()), text)


def _pairs(conf: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for text in conf:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
        yield name, value


def spark_options(command: Command) -> Command:
    """The options that all jobs have."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The summary as JSON."),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting for Spark; may be repeated."),
        click.option("--master", help="Where to run: local[2], spark://host:7077, yarn, k8s://… All cores here unless told."),
    ):
        command = option(command)
    return command


def source_options(command: Command) -> Command:
    """The options of jobs that read messages from files or tables."""
    for option in (
        click.option("--exchange", help="The exchange of all messages, if no column tells it."),
        click.option("--vhost", default=DEFAULT_VHOST, show_default=True),
        click.option("--format", "format_", default="parquet", show_default=True, help="Any that Spark reads, or table."),
        click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="For Spark's reader; may be repeated."),
        click.option("--key-column", default="routing_key", show_default=True),
        click.option("--exchange-column", default="exchange", show_default=True),
        click.option("--headers-column", default="headers", show_default=True),
    ):
        command = option(command)
    return command


def broker_options(command: Command) -> Command:
    for option in (
        click.option("--ca-file", help="What to trust, for amqps."),
        click.option("--password-file", help="A file that holds the password."),
        click.option("--password-env", help="The variable of the environment that holds the password."),
        click.option("--user", help="Who connects; guest unless told."),
        click.option("--url", required=True, metavar="URL", help="The broker, as in amqp://127.0.0.1:5672/%2F."),
    ):
        command = option(command)
    return command


@click.group(no_args_is_help=True)
def pipeline() -> None:
    """Run jobs on Apache Spark: route, archive, replay, compare, report."""


@pipeline.command()
@click.argument("source")
@click.argument("target")
@click.option("--definitions", required=True, type=click.Path(path_type=Path), help="The topology.")
@source_options
@click.option("--target-format", default="parquet", show_default=True)
@click.option(
    "--mode",
    default="error",
    show_default=True,
    type=click.Choice(["error", "append", "overwrite", "ignore"]),
    help="If it exists.",
)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="As in: --partition-by queue.")
@click.option("--unroutable", default="keep", show_default=True, type=click.Choice(["keep", "drop", "only"]))
@click.option("--settings", is_flag=True, help="Add the priority and time to live that bindings give.")
@click.option("--bindings", is_flag=True, help="Add the bindings that matched.")
@spark_options
def route(
    source: str, target: str, definitions: Path, options: tuple[str, ...], master: str | None, conf: tuple[str, ...], *,
    format_: str, key_column: str, exchange_column: str, headers_column: str, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Route the messages of SOURCE and write one row for each delivery to TARGET."""
    topology = Topology.from_definitions(definitions)
    started = time.perf_counter()
    with Setting(master, conf, as_json).running("route") as (spark, _):
        from holtmq.spark import Columns, route_job

        columns = Columns(key_column, exchange_column, headers_column)
        summary = route_job(
            spark, source, target, topology, format=format_, options=dict(_pairs(options)), columns=columns, **asked
        )
    _conclude({**summary.to_json(), "seconds": _since(started)}, as_json=as_json)


@pipeline.command()
@click.argument("queue")
@click.argument("target")
@broker_options
@click.option("--checkpoint", help="Where the stream keeps its place; beside the data unless told.")
@click.option("--format", "format_", default="parquet", show_default=True, help="Any that Spark writes.")
@click.option("--partition-by", multiple=True, default=["date"], show_default=True, metavar="COLUMN")
@click.option("--follow", is_flag=True, help="Go on until interrupted, rather than until the queue is empty.")
@click.option("--interval", default="10 seconds", show_default=True, help="How often to write, with --follow.")
@click.option("--compact/--no-compact", "compacts", default=True, show_default=True, help="Merge small files at the end.")
@spark_options
def archive(
    queue: str, target: str, url: str, user: str | None, password_env: str | None, password_file: str | None,
    ca_file: str | None, master: str | None, conf: tuple[str, ...], *, format_: str, partition_by: tuple[str, ...],
    follow: bool, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Write the messages of QUEUE to files under TARGET, and take them off the queue."""
    started = time.perf_counter()
    with Setting(master, conf, as_json).running(f"archive {queue}") as (spark, progress):
        from holtmq.spark import archive as run

        summary = run(
            spark, queue, target, format=format_, partition_by=tuple(partition_by), available_now=not follow,
            progress=lambda count: progress.tell(f"{count:,} messages"),
            **_broker(url, user, password_env, password_file, ca_file), **asked,
        )  # fmt: skip
    _conclude({**summary.to_json(), "seconds": _since(started)}, as_json=as_json)


@pipeline.command()
@click.argument("source")
@broker_options
@click.option("--format", "format_", default="parquet", show_default=True, help="Any that Spark reads, or table.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]), help="UTC.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]), help="UTC.")
@click.option("--key", help="A pattern, as in orders.#.premium.")
@click.option("--queue", help="Messages that were archived from this queue.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Messages with this header; may be repeated.")
@click.option("--exchange", help="Publish there, rather than to the exchange that a message came from.")
@click.option("--rate", default=0, show_default=True, type=click.IntRange(0), help="Messages a second; 0: no limit.")
@click.option("--allow-unroutable", is_flag=True, help="Count messages that reach no queue, rather than fail.")
@spark_options
def replay(
    source: str, url: str, user: str | None, password_env: str | None, password_file: str | None, ca_file: str | None,
    master: str | None, conf: tuple[str, ...], *, format_: str, since: datetime | None, until: datetime | None,
    key: str | None, queue: str | None, headers: tuple[str, ...], exchange: str | None, rate: int, allow_unroutable: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Publish messages of the archive SOURCE again, with their properties and a header that marks them."""
    started = time.perf_counter()
    with Setting(master, conf, as_json).running("replay") as (spark, _):
        from holtmq.spark import Choice
        from holtmq.spark import replay as run

        choice = Choice(_utc(since), _utc(until), key, queue, dict(map(parse_header, headers)))
        broker = _broker(url, user, password_env, password_file, ca_file)
        summary = run(_read(spark, source, format_), choice=choice, exchange=exchange, rate=rate, **broker)
    _conclude({**summary.to_json(), "seconds": _since(started)}, as_json=as_json)
    if summary.published.returned and not allow_unroutable:
        published = summary.published
        raise PipelineError(
            f"{published.returned:,} of {published.confirmed:,} messages reached no queue (the first: {published.first_return})"
        )


@pipeline.command()
@click.argument("source")
@click.option("--before", required=True, type=click.Path(path_type=Path), help="The topology as it is.")
@click.option("--after", required=True, type=click.Path(path_type=Path), help="The topology as it would be.")
@source_options
@click.option(
    "--fail-above",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help=f"Exit with {AFFECTED} if more messages are affected.",
)
@spark_options
def compare(
    source: str, before: Path, after: Path, options: tuple[str, ...], master: str | None,
    conf: tuple[str, ...], *, exchange: str | None, vhost: str, format_: str, key_column: str, exchange_column: str,
    headers_column: str, fail_above: float | None, as_json: bool,
) -> int:  # fmt: skip
    """Say which messages of SOURCE would go elsewhere if the topology changed."""
    old, new = Topology.from_definitions(before), Topology.from_definitions(after)
    with Setting(master, conf, as_json).running("compare") as (spark, _):
        from holtmq.spark import Columns
        from holtmq.spark import compare as run

        messages = _read(spark, source, format_, options)
        columns = Columns(key_column, exchange_column, headers_column)
        comparison = run(messages, old, new, vhost=vhost, exchange=exchange, columns=columns)
    if as_json:
        print_json(comparison.to_json())
    else:
        show_comparison(comparison)
    return AFFECTED if fail_above is not None and 100 * comparison.share > fail_above else 0


@pipeline.command()
@click.argument("source")
@click.option("--definitions", required=True, type=click.Path(path_type=Path), help="The topology.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the report as a page.")
@click.option("--title", default="Traffic", show_default=True)
@source_options
@spark_options
def report(
    source: str, definitions: Path, html: Path | None, title: str, options: tuple[str, ...], master: str | None,
    conf: tuple[str, ...], *, exchange: str | None, vhost: str, format_: str, key_column: str, exchange_column: str,
    headers_column: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure the messages of SOURCE: volumes, hottest keys, unroutable messages, idle and overlapping bindings."""
    topology = Topology.from_definitions(definitions)
    with Setting(master, conf, as_json).running("report") as (spark, _):
        from holtmq.spark import Columns
        from holtmq.spark import report as run

        columns = Columns(key_column, exchange_column, headers_column)
        messages = _read(spark, source, format_, options)
        outcome = run(messages, topology, title=title, vhost=vhost, exchange=exchange, columns=columns)
    if html is not None:
        outcome.write_html(html)
    if as_json:
        print_json(outcome.to_json())
    else:
        show_report(outcome)
        if html is not None:
            show(f"\nThe page is {html}")


def _read(spark: SparkSession, source: str, format_: str, options: tuple[str, ...] = ()) -> DataFrame:
    return (
        spark.table(source) if format_ == "table" else spark.read.format(format_).options(**dict(_pairs(options))).load(source)
    )


def _broker(
    url: str, user: str | None, password_env: str | None, password_file: str | None, ca_file: str | None
) -> dict[str, Any]:
    options = {"url": url, "user": user, "passwordEnv": password_env, "passwordFile": password_file, "caFile": ca_file}
    return {name: value for name, value in options.items() if value is not None}


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None else None


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 1)


def _conclude(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    width = max(map(len, summary))
    for name, value in summary.items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):{width}}  {f'{value:,}' if isinstance(value, int) else value}")


def show_comparison(comparison: Comparison) -> None:
    percent = f"{100 * comparison.share:.1f} %"
    keys = f"{comparison.keys_affected:,} routing key{'' if comparison.keys_affected == 1 else 's'}"
    show(f"{comparison.affected:,} of {comparison.messages:,} messages ({percent}) would go elsewhere; {keys}.")
    facts = {
        "gain a queue": comparison.gaining,
        "lose a queue": comparison.losing,
        "become unroutable": comparison.newly_unroutable,
        "become routable": comparison.newly_routable,
        "would be refused": comparison.newly_refused,
    }
    show("   ".join(f"{count:,} {what}" for what, count in facts.items() if count) or "nothing changes")
    if comparison.queues:
        grid = _grid("queue", "before", "after", "gained", "lost")
        for queue in comparison.queues[:ROWS_SHOWN]:
            grid.add_row(queue.queue, *(f"{number:,}" for number in (queue.before, queue.after, queue.gained, queue.lost)))
        show(grid)
    if comparison.keys:
        grid = Grid("key", "exchange")
        grid.add_column("messages", justify="right")
        grid.add_column("queues")
        for key in comparison.keys[:ROWS_SHOWN]:
            grid.add_row(str(key.routing_key), str(key.exchange), f"{key.messages:,}", _change(key.before, key.after))
        show(grid)


def _change(before: tuple[str, ...], after: tuple[str, ...]) -> Text:
    """As in: −lost in red, +gained in green, and how many stay."""
    parts = [Text(f"−{queue}", "red") for queue in before if queue not in after]
    parts += [Text(f"+{queue}", "green") for queue in after if queue not in before]
    kept = sum(queue in after for queue in before)
    return Text(", ").join(parts).append(f" ({kept} stay)" if kept else "" if after else " (unroutable)")


def show_report(outcome: Report) -> None:
    show(
        f"{outcome.messages:,} messages, {outcome.deliveries:,} deliveries, {outcome.distinct_keys:,} keys; "
        f"{outcome.unroutable:,} unroutable, {outcome.malformed:,} malformed"
    )
    grid = _grid("queue", "messages", "bytes")
    for volume in outcome.queues[:ROWS_SHOWN]:
        grid.add_row(volume.name, f"{volume.messages:,}", f"{volume.bytes:,}")
    show(grid)
    grid = _grid("hottest keys", "messages")
    for key in outcome.keys[:ROWS_SHOWN]:
        grid.add_row(str(key.routing_key), f"{key.messages:,}")
    show(grid)
    for heading, names in (
        ("Unroutable keys", [f"{key.routing_key} ({key.messages:,})" for key in outcome.unroutable_keys]),
        ("Malformed", [f"{reason.name} ({reason.messages:,})" for reason in outcome.reasons]),
        ("Bindings that never matched", list(outcome.idle_bindings)),
        ("Bindings that overlap", [f"{o.first} and {o.second} ({o.messages:,})" for o in outcome.overlaps]),
    ):
        if names:
            more = f" and {len(names) - ROWS_SHOWN} more" if len(names) > ROWS_SHOWN else ""
            click.echo(f"{heading}:\n" + "\n".join(f"  {name}" for name in names[:ROWS_SHOWN]) + more)


def _grid(first: str, *numbers: str) -> Grid:
    grid = Grid(first)
    for name in numbers:
        grid.add_column(name, justify="right")
    return grid
