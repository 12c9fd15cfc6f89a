"""holtmq vacuum: return unused space of a HoltMQ file to the file system."""

from __future__ import annotations

from pathlib import Path

import click

from holtmq.cli.http_client import DEFAULT_URL, Api, ca_option, http_url_option
from holtmq.cli.options import json_option, password_file_option
from holtmq.cli.output import print_json, show
from holtmq.embedded import EmbeddedBroker
from holtmq.errors import NotAStoreError, StoreOwnedError


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@http_url_option
@ca_option
@password_file_option
@json_option
def vacuum(file: Path | None, *, http_url: str | None, ca: str | None, password_file: str | None, as_json: bool) -> None:
    """Return the unused space of FILE, or of a running broker, to the disk.

    A file gives most of its unused space back by itself, also while a broker runs. This command gives back all of it.

    FILE is rebuilt, which also converts a file that was created by HoltMQ 0.2 or earlier and did not give space back.
    Processes that have FILE open through holtmq.open wait meanwhile, and the disk needs room for a copy.

    A running broker gives back the space of its file in small steps, and goes on serving its clients. Without FILE, that is
    the broker at --http-url. With FILE, it is used if a broker has FILE open.
    """
    if file is None:
        before, after = _vacuum_broker(Api(http_url or DEFAULT_URL, ca, password_file))
    else:
        try:
            before, after = _vacuum_file(file)
        except StoreOwnedError as error:
            if http_url is None:
                raise StoreOwnedError(f"{error}; `holtmq vacuum --http-url URL` works while a broker runs") from error
            before, after = _vacuum_broker(Api(http_url, ca, password_file))
    name = str(file or "data file of the broker")
    if as_json:
        print_json({"file": str(file) if file else None, "bytes_before": before, "bytes_after": after})
    else:
        show(f"{name}: {before:,} bytes before, {after:,} bytes now.")


def _vacuum_file(file: Path) -> tuple[int, int]:
    """Rebuild a file. Return its size before and after."""
    if not file.is_file():
        raise NotAStoreError(f"{file} does not exist; expected the path of a HoltMQ file")
    before = file.stat().st_size
    with EmbeddedBroker(file) as mq:
        mq.vacuum()
        return before, file.stat().st_size


def _vacuum_broker(api: Api) -> tuple[int, int]:
    """Let a broker give back the space of its file. Return the size of the file before and after."""
    answer = first = api.call("POST", "vacuum")
    while not answer["is_done"]:
        answer = api.call("POST", "vacuum")
    return first["bytes_before"], answer["bytes_after"]
