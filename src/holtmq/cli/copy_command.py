"""holtmq copy: copy a file to a database, or back."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.options import json_option, store_type
from holtmq.cli.output import print_json, show
from holtmq.database_url import shown_path
from holtmq.embedded.copying import copy as copy_store
from holtmq.embedded.message import STATE_NAMES
from holtmq.store.records import DeliveryState
from holtmq.topology import DEFAULT_VHOST


@click.command()
@click.argument("source", type=store_type)
@click.argument("destination", type=store_type)
@json_option
def copy(source: Path | str, destination: Path | str, *, as_json: bool) -> None:
    """Copy SOURCE to DESTINATION, each a HoltMQ file or the URL of a PostgreSQL database.

    Everything is copied: topology, users, messages in all states, and streams with their offsets. SOURCE is not changed.
    DESTINATION must be empty or not exist. Stop all processes that use SOURCE first, brokers included, and start none until
    the copy is complete.

    If the copy is interrupted, run the command again to continue. At the end, both are counted and compared. A copy that is
    complete already is compared in full, and stays as it is.
    """
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("messages", total=None)
        report = copy_store(source, destination, lambda done, total: progress.update(bar, completed=done, total=total))
    queues = {
        name: {STATE_NAMES[DeliveryState(state)]: 0 for state in DeliveryState} | _by_name(states)
        for name, states in report.queues.items()
    }
    if as_json:
        listed = [{"vhost": vhost, "queue": name, **states} for (vhost, name), states in queues.items()]
        streams = [{"vhost": vhost, "stream": name, "messages": number} for (vhost, name), number in report.streams.items()]
        print_json({"messages": report.messages, "queues": listed, "streams": streams})
        return
    grid = Grid("queue", *dict.fromkeys(STATE_NAMES.values()))
    for name, states in queues.items():
        grid.add_row(Text(_label(name)), *(f"{number:,}" for number in states.values()))
    for name, number in report.streams.items():
        grid.add_row(Text(f"{_label(name)} (stream)"), f"{number:,}")
    done = "were already copied" if report.was_complete else "copied"
    found = "compared" if report.was_complete else "counted"
    show(grid, f"{report.messages:,} messages {done} from {shown_path(source)} to {shown_path(destination)}, and {found}.")


def _by_name(states: dict[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for state, number in states.items():
        name = STATE_NAMES[DeliveryState(state)]
        found[name] = found.get(name, 0) + number
    return found


def _label(name: tuple[str, str]) -> str:
    vhost, queue = name
    return queue if vhost == DEFAULT_VHOST else f"{vhost}: {queue}"
