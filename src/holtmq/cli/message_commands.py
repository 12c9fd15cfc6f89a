"""holtmq publish, get, purge, move: the messages of a broker."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime
from typing import Any

import click

from holtmq.cli.http_client import Api, api_options, exchange_segment
from holtmq.cli.list_commands import show_rows
from holtmq.cli.options import (
    header_option,
    json_option,
    parse_header,
    parse_table,
    require_confirmation,
    vhost_option,
    yes_option,
)
from holtmq.cli.output import print_json, show
from holtmq.cli.stream_start import chosen_start, start_options
from holtmq.routing.explanation_text import count

NOT_ROUTED = 3
"""The exit code of a publish that reached no queue."""
NUMERIC = ("priority", "delivery_mode", "timestamp")
SHOWN_CHARACTERS = 200
ACK_MODES = {
    "requeue": "ack_requeue_true",
    "remove": "ack_requeue_false",
    "reject": "reject_requeue_false",
}


@click.command()
@click.argument("exchange")
@click.argument("key")
@click.argument("body", required=False)
@header_option
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Message property, such as content_type=text/plain. Can be repeated.",
)
@click.option(
    "--persistent/--transient", default=True, show_default=True, help="Whether the message survives a restart of the broker."
)
@vhost_option
@api_options
def publish(
    api: Api, exchange: str, key: str, body: str | None, headers: tuple[str, ...], properties: tuple[str, ...], vhost: str,
    *, persistent: bool,
) -> int:  # fmt: skip
    """Publish BODY to EXCHANGE with the routing key KEY; without BODY, read it from stdin.

    Exit with code 3 if the message reaches no queue.
    """
    content = sys.stdin.buffer.read() if body is None else body.encode()
    given: dict[str, Any] = {"delivery_mode": 2 if persistent else 1, **dict(map(_property, properties))}
    if headers:
        given["headers"] = parse_table(headers)
    message = {
        "properties": given,
        "routing_key": key,
        "payload": base64.b64encode(content).decode(),
        "payload_encoding": "base64",
    }
    answer = api.call("POST", "exchanges", vhost, exchange_segment(exchange), "publish", body=message)
    show("Message published." if answer["routed"] else "Message published, but it reached no queue; see holtmq explain.")
    return 0 if answer["routed"] else NOT_ROUTED


def _property(text: str) -> tuple[str, Any]:
    """Return the name and value of a property; most are strings, even if they look like numbers."""
    name, value = parse_header(text)
    return name, value if name in NUMERIC else text.partition("=")[2]


@click.command()
@click.argument("queue")
@click.option("--count", "number", default=1, show_default=True, help="Maximum number of messages to get.")
@click.option(
    "--ack-mode",
    type=click.Choice(list(ACK_MODES)),
    default="requeue",
    show_default=True,
    help="Requeue the messages, remove them, or reject them (dead-letter).",
)
@start_options
@vhost_option
@json_option
@api_options
def get(
    api: Api, queue: str, number: int, ack_mode: str, offset: str | None, since: str | None, vhost: str, *, as_json: bool
) -> int:  # fmt: skip
    """Get messages from QUEUE and, by default, requeue them. Exit with code 1 if the queue is empty.

    If QUEUE is a stream, its messages stay. --offset and --from say which are read.
    """
    request: dict[str, Any] = {"count": number, "ackmode": ACK_MODES[ack_mode], "encoding": "auto"}
    if offset is not None or since is not None:
        start = chosen_start(offset, since)
        request["offset"] = start.isoformat() if isinstance(start, datetime) else start
    messages = api.call("POST", "queues", vhost, queue, "get", body=request)
    if as_json:
        print_json(messages)
    elif not messages:
        show("No messages.")
    elif "offset" in messages[0]:
        rows = [
            [each["offset"], _time(each), each["exchange"], each["routing_key"], each["properties"], _payload(each)]
            for each in messages
        ]
        show_rows(["offset", "time", "exchange", "routing key", "properties", "payload"], rows, "")
    else:
        rows = [
            [each["exchange"], each["routing_key"], each["redelivered"], each["properties"], _payload(each)]
            for each in messages
        ]
        show_rows(["exchange", "routing key", "redelivered", "properties", "payload"], rows, "")
    return 0 if messages else 1


def _time(message: dict[str, Any]) -> str:
    return datetime.fromtimestamp(message["timestamp"] / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _payload(message: dict[str, Any]) -> str:
    text: str = message["payload"]
    shown = text[:SHOWN_CHARACTERS] + ("…" if len(text) > SHOWN_CHARACTERS else "")
    return f"base64 {shown}" if message["payload_encoding"] == "base64" else shown


@click.command()
@click.argument("queue")
@yes_option
@vhost_option
@api_options
def purge(api: Api, queue: str, vhost: str, *, yes: bool) -> None:
    """Remove all ready messages from QUEUE."""
    require_confirmation(f"Remove all ready messages from queue {queue}?", yes=yes)
    api.call("DELETE", "queues", vhost, queue, "contents")
    show(f"Queue {queue} purged.")


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("--count", "number", type=int, help="Maximum number of messages to move (default: all).")
@vhost_option
@api_options
def move(api: Api, source: str, destination: str, number: int | None, vhost: str) -> None:
    """Move messages from the queue SOURCE to the end of the queue DESTINATION.

    The messages keep their routing keys and properties.
    """
    body: dict[str, Any] = {"destination": destination}
    if number is not None:
        body["count"] = number
    moved = api.call("POST", "queues", vhost, source, "move", body=body)["moved"]
    show(f"{count(moved, 'message')} moved from {source} to {destination}.")
