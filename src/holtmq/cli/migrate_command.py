"""holtmq migrate: convert a MiniQ or litequeue file."""

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
from holtmq.embedded.legacy import migrate as migrate_file


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=store_type,
    help="File to create, or the URL of a PostgreSQL database (default: FILE with the suffix .holtmq.db).",
)
@json_option
def migrate(file: Path, output: Path | str | None, *, as_json: bool) -> None:
    """Convert the MiniQ or litequeue FILE to a HoltMQ file. FILE is not changed.

    Statuses, topics, priorities and times are kept. The new file appears when the conversion is complete; if it fails, no
    file is created.
    """
    target = output or file.with_name(f"{file.stem}.holtmq.db")
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("messages", total=None)
        report = migrate_file(file, target, lambda done, total: progress.update(bar, completed=done, total=total))
    if as_json:
        print_json({"target": report.target, "messages": report.messages, "queues": report.queues})
        return
    grid = Grid("queue", "ready", "locked", "done", "failed")
    for name, states in report.queues.items():
        grid.add_row(Text(name), *(f"{states[state]:,}" for state in ("ready", "locked", "done", "failed")))
    show(grid, f"{report.messages:,} messages copied from {report.source} to {report.target}.")
