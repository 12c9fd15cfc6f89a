"""holtmq pipeline: the jobs on Spark, with a progress bar, a summary, and JSON for scripts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.broker_login import Login, amqp_url_option, login_options
from holtmq.cli.http_client import Api
from holtmq.cli.message_source import MessageSource, is_broker, loss_option, pattern_options, queue_option, stream_options
from holtmq.cli.options import data_option, definitions_option, given_topology, parse_header
from holtmq.cli.output import print_json, show
from holtmq.cli.spark_run import PipelineError, SparkRun, pairs
from holtmq.client.address import Address, without_password
from holtmq.client.http_api import HttpApi
from holtmq.client.run_announcer import Announcement
from holtmq.errors import DefinitionsError
from holtmq.printable import printable
from holtmq.topology import DEFAULT_VHOST, Topology

if TYPE_CHECKING:
    from holtmq.spark import Comparison, Report
    from holtmq.spark.amqp.amqp_options import BrokerOptions
    from holtmq.spark.routing_job import WriteMode
    from holtmq.spark.routing_request import Unroutable

Command = TypeVar("Command", bound=Callable[..., Any])
AFFECTED = 3
"""Exit code of a comparison in which more messages are affected or refused than allowed."""
ROWS_SHOWN = 12
TIMES = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"])


def spark_options(command: Command) -> Command:
    """Add the options of all jobs."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
        click.option(
            "--http-url",
            envvar="HOLTMQ_HTTP_URL",
            metavar="URL",
            help="HTTP API whose Pipeline page lists this run (default: the broker's, if it is HoltMQ) [env: HOLTMQ_HTTP_URL]",
        ),
        click.option(
            "--announce/--no-announce",
            default=True,
            show_default=True,
            help="Tell the broker about this run, for its Pipeline page.",
        ),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Configuration for Spark. Can be repeated."),
        click.option(
            "--master",
            help="Spark master: local[2], spark://host:7077, yarn, k8s://… (default: all cores of this machine).",
        ),
    ):
        command = option(command)
    return command


def source_options(command: Command) -> Command:
    """Add the options of jobs that read messages from files or tables."""
    for option in (
        click.option("--exchange", help="Exchange of all messages (default: the exchange column)."),
        click.option("--vhost", default=DEFAULT_VHOST, show_default=True, help="Virtual host of the topology."),
        click.option(
            "--format", "format_", default="parquet", show_default=True, help="Input format: any that Spark reads, or table."
        ),
        click.option(
            "--option", "options", multiple=True, metavar="NAME=VALUE", help="Option for Spark's reader. Can be repeated."
        ),
        click.option("--key-column", default="routing_key", show_default=True, help="Column with the routing key."),
        click.option("--exchange-column", default="exchange", show_default=True, help="Column with the exchange."),
        click.option("--headers-column", default="headers", show_default=True, help="Column with the headers."),
    ):
        command = option(command)
    return command


def broker_options(command: Command) -> Command:
    """Add the options of jobs that connect to a broker."""
    return amqp_url_option()(login_options(command))


@click.group(no_args_is_help=True)
def pipeline() -> None:
    """Run jobs on Apache Spark: route, archive, replay, compare, report."""


@pipeline.command()
@click.argument("source")
@click.argument("target")
@definitions_option
@data_option
@source_options
@click.option("--target-format", default="parquet", show_default=True, help="Output format: any that Spark writes, or table.")
@click.option(
    "--mode",
    default="error",
    show_default=True,
    type=click.Choice(["error", "append", "overwrite", "ignore"]),
    help="What to do if TARGET exists.",
)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="Column that names the output folders, such as queue.")
@click.option(
    "--unroutable",
    default="keep",
    show_default=True,
    type=click.Choice(["keep", "drop", "only"]),
    help="Keep or drop messages that reach no queue, or write only those.",
)
@click.option("--settings", is_flag=True, help="Add the priority and time to live that bindings set.")
@click.option("--bindings", is_flag=True, help="Add the bindings that matched.")
@spark_options
def route(
    source: str, target: str, definitions: Path | None, data: Path | str | None, options: tuple[str, ...],
    master: str | None, conf: tuple[str, ...], http_url: str | None, *, announce: bool,
    exchange: str | None, vhost: str, format_: str, key_column: str, exchange_column: str, headers_column: str,
    target_format: str, mode: WriteMode, partition_by: tuple[str, ...], unroutable: Unroutable, settings: bool,
    bindings: bool, as_json: bool,
) -> None:  # fmt: skip
    """Route the messages of SOURCE and write one row for each delivery to TARGET.

    The topology comes from a definitions file, or from a HoltMQ file or database: use --definitions or --data.
    """
    topology = given_topology(definitions, data)
    started = time.perf_counter()
    about = Announcement(_finder(http_url, announce=announce), source, target, vhost)
    interrupted = f"the deliveries in {target} are missing or incomplete. Run the job again with --mode overwrite"
    with SparkRun("route", master, conf, about, interrupted).started() as (spark, progress):
        from holtmq.spark import Columns, route_job

        counted = progress.accumulator()
        summary = route_job(
            spark, source, target, topology, format=format_, target_format=target_format, options=dict(pairs(options)),
            mode=mode, partition_by=partition_by, vhost=vhost, exchange=exchange,
            columns=Columns(key_column, exchange_column, headers_column), unroutable=unroutable, settings=settings,
            bindings=bindings, counted=counted,
        )  # fmt: skip
    _show_summary(summary.to_dict(), summary.counts.messages, started, as_json=as_json)
    counts, undelivered = summary.counts, summary.counts.unroutable
    if unroutable == "drop" and mode != "ignore" and not counts.deliveries:  # dropped messages are not counted
        undelivered = counts.messages - counts.malformed
    _require_delivered(counts.messages, undelivered, counts.malformed, vhost, f" The column reason in {target} says why.")


@pipeline.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.argument("target")
@broker_options
@pattern_options
@click.option(
    "--checkpoint", help="Folder for the progress of the stream and its spool (default: _holtmq/checkpoint in TARGET)."
)
@click.option("--format", "format_", default="parquet", show_default=True, help="Output format: parquet, orc, json or delta.")
@click.option(
    "--partition-by",
    multiple=True,
    default=["date"],
    show_default=True,
    metavar="COLUMN",
    help="Column that names the output folders. Can be repeated.",
)
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="Read stream queues from here on: earliest, latest, an offset, a time (UTC), or a time span such as 24h.",
)
@loss_option
@click.option("--follow", is_flag=True, help="Continue until interrupted. Without it, stop when the queue is empty.")
@click.option("--interval", default="10 seconds", show_default=True, help="Time between writes, with --follow.")
@click.option("--compact/--no-compact", default=True, show_default=True, help="Merge small files at the end.")
@spark_options
def archive(
    queues: tuple[str, ...], target: str, amqp_url: str, user: str | None, password_env: str | None,
    password_file: str | None, ca_file: str | None, checkpoint: str | None, master: str | None, conf: tuple[str, ...],
    http_url: str | None, *, announce: bool, queue_pattern: str | None, management_url: str | None, format_: str,
    partition_by: tuple[str, ...], start: str | None, allow_data_loss: bool, follow: bool, interval: str, compact: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Move the messages of one or more queues into files under TARGET.

    With --from, these are stream queues, whose messages are copied.
    """
    if bool(queues) == (queue_pattern is not None):
        found = "both" if queues else "neither"
        raise click.UsageError(f"name the queues to archive before TARGET, or with --queue-pattern, got {found}")
    if allow_data_loss and start is None:
        raise click.UsageError("--allow-data-loss is for stream queues: say where to start in them with --from")
    broker = Login(user, password_env, password_file, ca_file).broker(amqp_url)
    _require_broker(broker)
    started = time.perf_counter()
    source = f"{without_password(amqp_url)}, queue {', '.join(queues) or queue_pattern}"
    alone = queues[0] if len(queues) == 1 else ""
    find = _finder(http_url, broker, announce=announce)
    about = Announcement(find, source, target, Address.parse(amqp_url).vhost, alone)
    places = "queue or in the spool" if start is None else "stream"
    interrupted = f"messages that are not archived are still in the {places}. Run the job again to continue"
    with SparkRun("archive", master, conf, about, interrupted).started() as (spark, progress):
        from holtmq.spark import archive as run

        summary = run(
            spark, queues, target, url=amqp_url, user=user, password=broker.password, password_env=password_env,
            password_file=password_file, ca_file=ca_file, checkpoint=checkpoint, format=format_, partition_by=partition_by,
            available_now=not follow, interval=interval, compact=compact, starting_offsets=start,
            fail_on_data_loss=not allow_data_loss, queue_pattern=queue_pattern, management_url=management_url,
            progress=progress.count, announce="",
        )  # fmt: skip
    _show_summary(summary.to_dict(), summary.messages, started, as_json=as_json)


@pipeline.command()
@click.argument("source")
@broker_options
@click.option(
    "--format",
    "format_",
    default="parquet",
    show_default=True,
    help="Input format: that of the archive, or any that Spark reads.",
)
@click.option("--since", type=TIMES, help="Publish messages from this time on (UTC).")
@click.option("--until", type=TIMES, help="Publish messages before this time (UTC).")
@click.option("--key", help="Publish messages whose routing key matches this pattern, such as orders.#.premium.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Publish messages that were archived from this queue, or are in this stream queue. Can be repeated.",
)
@stream_options
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Publish messages with this header. Can be repeated."
)
@click.option(
    "--source-password-file",
    metavar="PATH",
    help="File with the password for SOURCE, if it is another broker, on each machine that connects.",
)
@click.option("--exchange", help="Exchange to publish to (default: that of each message).")
@click.option("--rate", default=0, show_default=True, type=click.IntRange(0), help="Maximum messages per second (0: no limit).")
@click.option(
    "--exact", is_flag=True, help="Send messages byte for byte as they were received, without the header of a replay."
)
@click.option("--allow-unroutable", is_flag=True, help="Succeed even if messages reach no queue.")
@spark_options
def replay(
    source: str, amqp_url: str, user: str | None, password_env: str | None, password_file: str | None, ca_file: str | None,
    master: str | None, conf: tuple[str, ...], http_url: str | None, *, announce: bool, format_: str, since: datetime | None,
    until: datetime | None, key: str | None, queues: tuple[str, ...], queue_pattern: str | None, management_url: str | None,
    start: str | None, end: str | None, allow_data_loss: bool, headers: tuple[str, ...], source_password_file: str | None,
    exchange: str | None, rate: int,
    exact: bool, allow_unroutable: bool, as_json: bool,
) -> None:  # fmt: skip
    """Publish messages of the archive SOURCE again, with their properties and the header x-holtmq-replay.

    SOURCE is the folder or table of an archive, or the AMQP URL of a broker with stream queues.
    """
    login = Login(user, password_env, password_file, ca_file)
    if is_broker(source) and (since is not None or until is not None):
        raise click.UsageError("--since and --until select messages of an archive: for stream queues, use --from and --to")
    streams = queues if is_broker(source) else ()
    source_login = login.for_source(source, amqp_url, source_password_file) if is_broker(source) else Login()
    given = MessageSource(
        source, format_, streams, queue_pattern, management_url, start, end, login=source_login, allow_data_loss=allow_data_loss
    )
    broker = login.broker(amqp_url)
    if master is None or master.startswith("local"):  # on a cluster, only the executors may reach the broker
        _require_broker(broker)
    started = time.perf_counter()
    replay_id = None if exact else str(uuid.uuid4())
    find = _finder(http_url, broker, announce=announce)
    about = Announcement(find, str(given), without_password(amqp_url), Address.parse(amqp_url).vhost)
    mark = f". Their header x-holtmq-replay is {replay_id}" if replay_id is not None else ""
    interrupted = f"a part of the messages may be published{mark}"
    with SparkRun("replay", master, conf, about, interrupted).started() as (spark, _):
        from holtmq.spark import MessageFilter
        from holtmq.spark import replay as run

        archived_from = None if is_broker(source) else queues or None
        where = MessageFilter(_utc(since), _utc(until), key, archived_from, dict(map(parse_header, headers)))
        summary = run(
            given.read_archive(spark), url=amqp_url, user=user, password=broker.password, password_env=password_env,
            password_file=password_file, ca_file=ca_file, where=where, exchange=exchange, rate=rate, exact=exact,
            replay_id=replay_id, announce="",
        )  # fmt: skip
    _show_summary(summary.to_dict(), summary.published.confirmed, started, as_json=as_json)
    if summary.published.returned and not allow_unroutable:
        published = summary.published
        raise PipelineError(
            f"{published.returned:,} of {published.confirmed:,} messages reached no queue (the first: "
            f"{published.first_return}): bind a queue, or add --allow-unroutable"
        )


@pipeline.command()
@click.argument("source")
@click.option("--before", required=True, type=click.Path(path_type=Path), help="Definitions file with the current topology.")
@click.option("--after", required=True, type=click.Path(path_type=Path), help="Definitions file with the changed topology.")
@queue_option
@stream_options
@login_options
@source_options
@click.option(
    "--fail-above",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help=f"Exit with code {AFFECTED} if more than this percentage of the messages is affected, or refused by both topologies.",
)
@spark_options
def compare(
    source: str, before: Path, after: Path, options: tuple[str, ...], master: str | None,
    conf: tuple[str, ...], http_url: str | None, *, announce: bool, queues: tuple[str, ...], queue_pattern: str | None,
    management_url: str | None, start: str | None, end: str | None, allow_data_loss: bool,
    user: str | None, password_env: str | None, password_file: str | None, ca_file: str | None,
    exchange: str | None, vhost: str, format_: str, key_column: str, exchange_column: str,
    headers_column: str, fail_above: float | None, as_json: bool,
) -> int:  # fmt: skip
    """Show which messages of SOURCE would reach other queues after a change of the topology.

    SOURCE is a folder, a table, or the AMQP URL of a broker with stream queues.
    """
    old, new = _topology_in(before), _topology_in(after)
    login = Login(user, password_env, password_file, ca_file)
    given = MessageSource(source, format_, queues, queue_pattern, management_url, start, end, options, login, allow_data_loss)
    about = Announcement(_finder(http_url, given.broker, announce=announce), str(given), vhost=given.vhost or vhost)
    with SparkRun("compare", master, conf, about).started() as (spark, _):
        from holtmq.spark import Columns
        from holtmq.spark import compare as run

        columns = Columns(key_column, exchange_column, headers_column)
        comparison = run(given.read(spark), old, new, vhost=vhost, exchange=exchange, columns=columns)
    if not comparison.messages:
        raise PipelineError(f"{given} contains no messages: nothing was compared")
    if as_json:
        print_json(comparison.to_dict())
    else:
        show_comparison(comparison)
    return AFFECTED if fail_above is not None and comparison.exceeds(fail_above) else 0


@pipeline.command()
@click.argument("source")
@definitions_option
@data_option
@click.option("--html", type=click.Path(path_type=Path), help="File for the report as an HTML page.")
@click.option("--title", default="Traffic", show_default=True, help="Title of the report.")
@queue_option
@stream_options
@login_options
@source_options
@spark_options
def report(
    source: str, definitions: Path | None, data: Path | str | None, html: Path | None, title: str, options: tuple[str, ...],
    master: str | None, conf: tuple[str, ...], http_url: str | None, *, announce: bool, queues: tuple[str, ...],
    queue_pattern: str | None, management_url: str | None, start: str | None, end: str | None, allow_data_loss: bool,
    user: str | None, password_env: str | None, password_file: str | None, ca_file: str | None,
    exchange: str | None, vhost: str, format_: str, key_column: str, exchange_column: str,
    headers_column: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure the messages of SOURCE: volumes, busiest keys, unroutable messages, idle and overlapping bindings.

    SOURCE is a folder, a table, or the AMQP URL of a broker with stream queues. The topology comes from a definitions file, or
    from a HoltMQ file or database: use --definitions or --data.
    """
    if html is not None and not html.parent.is_dir():
        raise PipelineError(f"the folder {html.parent} for the report does not exist: create it first")
    topology = given_topology(definitions, data)
    login = Login(user, password_env, password_file, ca_file)
    given = MessageSource(source, format_, queues, queue_pattern, management_url, start, end, options, login, allow_data_loss)
    find = _finder(http_url, given.broker, announce=announce)
    about = Announcement(find, str(given), str(html or ""), given.vhost or vhost)
    with SparkRun("report", master, conf, about).started() as (spark, _):
        from holtmq.spark import Columns
        from holtmq.spark import report as run

        columns = Columns(key_column, exchange_column, headers_column)
        outcome = run(given.read(spark), topology, title=title, vhost=vhost, exchange=exchange, columns=columns)
    if html is not None:
        outcome.write_html(html)
    if as_json:
        print_json(outcome.to_dict())
    else:
        show_report(outcome)
        if html is not None:
            show(f"\nReport written to {html}")
    why = ""
    if outcome.reasons:
        first = outcome.reasons[0]
        why = f" The most frequent reason ({first.messages:,} messages): {first.name}."
    _require_delivered(outcome.messages, outcome.unroutable, outcome.malformed, vhost, why)


def _topology_in(path: Path) -> Topology:
    """Return the topology in one of several definitions files. Raise PipelineError, which says in which, if it is invalid."""
    try:
        return Topology.from_definitions(path)
    except DefinitionsError as error:
        raise PipelineError(f"{path}: {error}") from error


def _finder(
    http_url: str | None, broker: BrokerOptions | None = None, *, announce: bool
) -> Callable[[], HttpApi | None] | None:
    """Return a function that finds the HTTP API to which a run is announced: the one at the URL, or the broker's."""
    if not announce:
        return None
    if http_url:
        api = Api(http_url)
        return lambda: api
    if broker is None:
        return None

    def find() -> HttpApi | None:
        from holtmq.spark.job_announcement import api_of

        return api_of(broker)

    return find


def _require_broker(broker: BrokerOptions) -> None:
    """Connect once, so that a wrong address or password is reported at once and not after Spark's start and all retries."""
    broker.connect("holtmq pipeline").close()


def _require_delivered(messages: int, unroutable: int, refused: int, vhost: str, why: str) -> None:
    """Raise PipelineError if all messages are unroutable or refused: the job looked in the wrong place."""
    if not messages or unroutable + refused < messages:
        return
    seen = (
        f"none of the {messages:,} messages reaches a queue"
        if unroutable
        else f"the topology refuses all {messages:,} messages"
    )
    raise PipelineError(
        f"{seen}.{why if refused else ''} Check the virtual host (got {vhost!r}), the exchange, and the names of the columns"
    )


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None else None


def _show_summary(summary: dict[str, Any], messages: int, started: float, *, as_json: bool) -> None:
    seconds = time.perf_counter() - started
    summary = {**summary, "seconds": round(seconds, 1), "messages_per_second": round(messages / seconds)}
    if as_json:
        print_json(summary)
        return
    if not messages:
        click.echo("There were no messages.")
    width = max(map(len, summary))
    for name, value in summary.items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):{width}}  {f'{value:,}' if isinstance(value, int) else value}")


def show_comparison(comparison: Comparison) -> None:
    """Print a comparison with its most affected queues and keys."""
    percent = f"{100 * comparison.share:.1f} %"
    keys = f"{comparison.keys_affected:,} routing key{'' if comparison.keys_affected == 1 else 's'}"
    show(f"{comparison.affected:,} of {comparison.messages:,} messages ({percent}) would reach other queues; {keys}.")
    facts = {
        "gain a queue": comparison.gaining,
        "lose a queue": comparison.losing,
        "become unroutable": comparison.newly_unroutable,
        "become routable": comparison.newly_routable,
        "would be refused": comparison.newly_refused,
        "still reach no queue": comparison.still_unroutable,
        "are refused by both topologies": comparison.still_refused,
    }
    show("   ".join(f"{count:,} {what}" for what, count in facts.items() if count) or "No message would reach other queues.")
    _show_list("Refused by both", [f"{refusal.reason} ({refusal.messages:,})" for refusal in comparison.refusals])
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
    """Return the change of a key's queues: −lost in red, +gained in green, and the number of unchanged queues."""
    parts = [Text(f"−{queue}", "red") for queue in before if queue not in after]
    parts += [Text(f"+{queue}", "green") for queue in after if queue not in before]
    kept = sum(queue in after for queue in before)
    return Text(", ").join(parts).append(f" ({kept} unchanged)" if kept else "" if after else " (unroutable)")


def show_report(outcome: Report) -> None:
    """Print the most important figures of a report."""
    show(
        f"{outcome.messages:,} messages, {outcome.deliveries:,} deliveries, {outcome.distinct_keys:,} keys; "
        f"{outcome.unroutable:,} unroutable, {outcome.malformed:,} malformed"
    )
    grid = _grid("queue", "messages", "bytes")
    for volume in outcome.queues[:ROWS_SHOWN]:
        grid.add_row(volume.name, f"{volume.messages:,}", f"{volume.bytes:,}")
    show(grid)
    grid = _grid("busiest keys", "messages")
    for key in outcome.keys[:ROWS_SHOWN]:
        grid.add_row(str(key.routing_key), f"{key.messages:,}")
    show(grid)
    for heading, names in (
        ("Unroutable keys", [f"{key.routing_key} ({key.messages:,})" for key in outcome.unroutable_keys]),
        ("Malformed", [f"{reason.name} ({reason.messages:,})" for reason in outcome.reasons]),
        ("Bindings that never matched", list(outcome.idle_bindings)),
        ("Overlapping bindings", [f"{o.first} and {o.second} ({o.messages:,})" for o in outcome.overlaps]),
    ):
        _show_list(heading, names)


def _show_list(heading: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - ROWS_SHOWN} more" if len(names) > ROWS_SHOWN else ""
        click.echo(f"{heading}:\n" + "\n".join(f"  {printable(name)}" for name in names[:ROWS_SHOWN]) + more)


def _grid(first: str, *numbers: str) -> Grid:
    grid = Grid(first)
    for name in numbers:
        grid.add_column(name, justify="right")
    return grid
