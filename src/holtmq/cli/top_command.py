"""holtmq top: a live view of a broker in the terminal."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.http_client import Api, api_options
from holtmq.cli.list_commands import value_of
from holtmq.cli.output import Escaped, show

COLUMNS = (
    ("queue", "name", ""),
    ("ready", "messages_ready", ",d"),
    ("unacked", "messages_unacknowledged", ",d"),
    ("consumers", "consumers", ",d"),
    ("in/s", "message_stats.publish_details.rate", ",.1f"),
    ("out/s", "message_stats.deliver_get_details.rate", ",.1f"),
    ("acks/s", "message_stats.ack_details.rate", ",.1f"),
)
SORTS = {
    "m": "messages",
    "i": "message_stats.publish_details.rate",
    "o": "message_stats.deliver_get_details.rate",
    "c": "consumers",
    "n": "name",
}
BAR = "▁▂▃▄▅▆▇█"
HISTORY = 60
CHROME_LINES = 7


@click.command()
@api_options
@click.option("--interval", default=2.0, show_default=True, help="Refresh interval, in seconds.")
@click.option(
    "--sort", type=click.Choice(list(SORTS.values())), default="messages", show_default=True, help="Sort order of the queues."
)
@click.option("--once", is_flag=True, help="Print once and exit; the default if the output is not a terminal.")
def top(api: Api, interval: float, sort: str, *, once: bool) -> None:
    """Watch the totals and the busiest queues of a broker.

    Keys: m, i, o, c and n sort by messages, incoming rate, outgoing rate, consumers and name; q quits.
    """
    history: list[float] = []
    if once or not sys.stdout.isatty():
        show(_screen(api, sort, history, 20))
        return
    console = Console()
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Escaped(_screen(api, sort, history, max(3, console.height - CHROME_LINES))), refresh=True)
            key = keys(interval)
            if key in ("q", "\x03"):
                return
            sort = SORTS.get(key, sort)


def _screen(api: Api, sort: str, history: list[float], lines: int) -> RenderableType:
    overview = api.get("overview")
    # The broker sorts, and sends one page: the cost does not grow with the number of queues.
    page = api.get("queues", page=1, page_size=min(lines, 200), sort=sort, sort_reverse="false" if sort == "name" else "true")
    stats, lengths, totals = overview["message_stats"], overview["queue_totals"], overview["object_totals"]
    published, delivered = stats["publish_details"]["rate"], stats["deliver_get_details"]["rate"]
    history.append(published)
    del history[:-HISTORY]
    clock = time.strftime("%H:%M:%S")
    head = Text.assemble(
        (f"{overview['product_name']} {overview['product_version']} ", "bold"),
        f"{overview['cluster_name']}  {clock}\n",
        f"{totals['connections']:,} connections, {totals['channels']:,} channels, {totals['consumers']:,} consumers, ",
        f"{page['total_count']:,} queues, ",
        f"{lengths['messages_ready']:,} ready, {lengths['messages_unacknowledged']:,} unacked\n",
        ("in ", "cyan"), f"{published:,.1f}/s  ", ("out ", "green"), f"{delivered:,.1f}/s  ", (_bars(history), "cyan"),
    )  # fmt: skip
    return Group(head, _grid(page["items"], sort))


def _grid(items: list[dict[str, Any]], sort: str) -> Grid:
    grid = Grid(expand=True, box=None, header_style="bold")
    for heading, column, form in COLUMNS:
        is_sorted = column == sort or (sort == "messages" and heading == "ready")
        mark = " ▾" if is_sorted else ""
        grid.add_column(
            heading + mark, justify="right" if form else "left", no_wrap=True, overflow="ellipsis", ratio=None if form else 1
        )
    for item in items:
        grid.add_row(*(_cell(value_of(item, column), form) for _, column, form in COLUMNS))
    return grid


def _cell(value: Any, form: str) -> Text:
    return Text(str(value)) if not form else Text(format(value or 0, form), style="" if value else "dim")


def _bars(values: list[float]) -> str:
    most = max(values) or 1
    return "".join(BAR[min(len(BAR) - 1, int(value / most * (len(BAR) - 1)))] for value in values)


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for a key, for a number of seconds at most."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield sleep
        return
    import termios  # not on Windows, which has the other commands
    import tty

    kept = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        yield wait
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)
