"""holtmq vacuum: return unused space of a HoltMQ file to the file system."""

from __future__ import annotations

from pathlib import Path

import click

from holtmq.cli.options import json_option, store_type
from holtmq.cli.output import print_json, show
from holtmq.embedded import EmbeddedBroker


@click.command()
@click.argument("file", type=store_type)
@json_option
def vacuum(file: Path | str, *, as_json: bool) -> None:
    """Rebuild FILE without unused space.

    A file gives most of its unused space back by itself, also while a broker runs. This command gives back all of it, and
    converts files that were created by HoltMQ 0.2 or earlier, which did not do so. Processes that have FILE open through
    holtmq.open wait meanwhile; a broker must be stopped first. The disk needs room for a copy of the file.

    FILE may be the URL of a PostgreSQL database. Its space then becomes available for new messages, and routing keys that no
    message has are removed.
    """
    with EmbeddedBroker(file, must_exist=True) as mq:
        before = mq.database.size()
        mq.vacuum()
        after = mq.database.size()
        name = mq.path
    if as_json:
        print_json({"file": name, "bytes_before": before, "bytes_after": after})
    else:
        show(f"{name}: {before:,} bytes before, {after:,} bytes now.")
