"""holtmq vacuum: return unused space of a HoltMQ file to the file system."""

from __future__ import annotations

from pathlib import Path

import click

from holtmq.cli.options import json_option
from holtmq.cli.output import print_json, show
from holtmq.embedded import EmbeddedBroker
from holtmq.errors import NotAStoreError


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def vacuum(file: Path, *, as_json: bool) -> None:
    """Rebuild FILE without unused space.

    A file gives most of its unused space back by itself, also while a broker runs. This command gives back all of it, and
    converts files that were created by HoltMQ 0.2 or earlier, which did not do so. Processes that have FILE open through
    holtmq.open wait meanwhile; a broker must be stopped first. The disk needs room for a copy of the file.
    """
    if not file.is_file():
        raise NotAStoreError(f"{file} does not exist; expected the path of a HoltMQ file")
    before = file.stat().st_size
    with EmbeddedBroker(file) as mq:
        mq.vacuum()
        after = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes_before": before, "bytes_after": after})
    else:
        show(f"{file}: {before:,} bytes before, {after:,} bytes now.")
