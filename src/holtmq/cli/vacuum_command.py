"""holtmq vacuum: return unused space of a HoltMQ file to the file system."""

from __future__ import annotations

from pathlib import Path

import click

from holtmq.cli.http_client import DEFAULT_URL, Api, ca_option, http_url_option
from holtmq.cli.options import json_option, password_file_option, store_type
from holtmq.cli.output import print_json, show
from holtmq.embedded import EmbeddedBroker
from holtmq.errors import StoreOwnedError


@click.command()
@click.argument("file", type=store_type, required=False)
@http_url_option
@ca_option
@password_file_option
@json_option
def vacuum(file: Path | str | None, *, http_url: str | None, ca: str | None, password_file: str | None, as_json: bool) -> None:
    """Return the unused space of FILE, or of a running broker, to the disk.

    A file gives most of its unused space back by itself, also while a broker runs. This command gives back all of it.

    FILE is rebuilt, which also converts a file that was created by HoltMQ 0.2 or earlier and did not give space back.
    Processes that have FILE open through holtmq.open wait meanwhile, and the disk needs room for a copy.

    FILE may be the URL of a PostgreSQL database. Its space then becomes available for new messages, and routing keys that no
    message has are removed.

    A running broker gives back the space of its file in small steps, and goes on serving its clients. Without FILE, that is
    the broker at --http-url. With FILE, it is used if a broker has FILE open.
    """
    name = "data file of the broker"
    if file is None:
        before, after = _vacuum_broker(Api(http_url or DEFAULT_URL, ca, password_file))
    else:
        try:
            name, before, after = _vacuum_store(file)
        except StoreOwnedError as error:
            if http_url is None:
                raise StoreOwnedError(f"{error}; `holtmq vacuum --http-url URL` works while a broker runs") from error
            before, after = _vacuum_broker(Api(http_url, ca, password_file))
            name = str(file)
    if as_json:
        print_json({"file": name if file else None, "bytes_before": before, "bytes_after": after})
    else:
        show(f"{name}: {before:,} bytes before, {after:,} bytes now.")


def _vacuum_store(file: Path | str) -> tuple[str, int, int]:
    """Rebuild a file, or vacuum a database. Return its name, without a password, and its size before and after."""
    with EmbeddedBroker(file, must_exist=True) as mq:
        before = mq.database.size()
        mq.vacuum()
        return mq.path, before, mq.database.size()


def _vacuum_broker(api: Api) -> tuple[int, int]:
    """Let a broker give back the space of its file. Return the size of the file before and after."""
    answer = first = api.call("POST", "vacuum")
    while not answer["is_done"]:
        answer = api.call("POST", "vacuum")
    return first["bytes_before"], answer["bytes_after"]
