"""The streams of a HoltMQ file and their messages, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.output import print_json, show
from holtmq.embedded import StreamHandle, StreamRecord
from holtmq.table_json import table_to_json

SHOWN_CHARACTERS = 60


def describe_stream(stream: StreamHandle) -> dict[str, Any]:
    """Return what a stream holds, and who follows it."""
    extent = stream.extent()
    return {
        "queue": stream.name,
        "type": "stream",
        "messages": extent.number,
        "first_offset": extent.first_offset,
        "next_offset": extent.next_offset,
        "bytes": extent.size,
        "positions": stream.positions(),
    }


def grid_of_streams(streams: Sequence[dict[str, Any]]) -> Grid:
    """Return a table of streams. A position is shown with its lag: the messages after it."""
    grid = Grid("stream", "messages", "first offset", "next offset", "bytes", "positions (lag)")
    for each in streams:
        end = each["next_offset"]
        positions = ", ".join(f"{name} {at:,} ({max(0, end - at):,})" for name, at in each["positions"].items())
        numbers = (each["messages"], each["first_offset"], end, each["bytes"])
        grid.add_row(Text(each["queue"]), *(f"{number:,}" for number in numbers), Text(positions))
    return grid


def show_records(records: Sequence[StreamRecord], *, as_json: bool) -> None:
    """Print messages of a stream."""
    if as_json:
        print_json([_to_json(record) for record in records])
        return
    grid = Grid("offset", "time", "exchange", "routing key", "body")
    for record in records:
        time = record.timestamp.isoformat(sep=" ", timespec="milliseconds")
        cells = (record.offset, time, record.exchange, record.routing_key, beginning(record.body))
        grid.add_row(*(Text(str(cell)) for cell in cells))
    show(grid if records else "No messages.")


def beginning(body: bytes) -> str:
    """Return the part of a body that fits into a table."""
    return body[:SHOWN_CHARACTERS].decode(errors="replace") + ("…" if len(body) > SHOWN_CHARACTERS else "")


def _to_json(record: StreamRecord) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(),
        "routing_key": record.routing_key,
        "exchange": record.exchange,
        "headers": table_to_json(record.headers),
        "properties": table_to_json(record.properties),
        "body": record.body.decode(errors="replace"),
    }
