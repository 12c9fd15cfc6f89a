"""holtmq publish, get, purge, move: the messages of a broker."""

from __future__ import annotations

import base64
import sys
from typing import Any

import click
from rich.text import Text

from holtmq.cli.explain_command import parse_header
from holtmq.cli.http_client import Api, api_options, exchange_segment, json_option, table, vhost_option
from holtmq.cli.list_commands import show_rows
from holtmq.cli.output import print_json, show
from holtmq.routing.explanation_text import count

NOT_ROUTED = 3
NUMERIC = ("priority", "delivery_mode", "timestamp")
SHOWN_BYTES = 200
ACK_MODES = {
    "requeue": "ack_requeue_true",
    "remove": "ack_requeue_false",
    "reject": "reject_requeue_false",
}


@click.command()
@click.argument("exchange")
@click.argument("key")
@click.argument("body", required=False)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="As in content_type=text/plain; may be repeated."
)
@click.option("--persistent/--transient", default=True, show_default=True, help="Whether it is to outlive the broker.")
@vhost_option
@api_options
def publish(
    api: Api, exchange: str, key: str, body: str | None, headers: tuple[str, ...], properties: tuple[str, ...], vhost: str,
    *, persistent: bool,
) -> int:  # fmt: skip
    """Publish BODY, or what comes on stdin, to EXCHANGE under KEY. Exits with 3 where no queue took it."""
    content = sys.stdin.buffer.read() if body is None else body.encode()
    given: dict[str, Any] = {"delivery_mode": 2 if persistent else 1, **dict(map(_property, properties))}
    if headers:
        given["headers"] = table(headers)
    message = {
        "properties": given,
        "routing_key": key,
        "payload": base64.b64encode(content).decode(),
        "payload_encoding": "base64",
    }
    answer = api.call("POST", "exchanges", vhost, exchange_segment(exchange), "publish", body=message)
    show("published and routed" if answer["routed"] else "published, but no queue took it; holtmq explain says why")
    return 0 if answer["routed"] else NOT_ROUTED


def _property(text: str) -> tuple[str, Any]:
    """Most properties are texts, whatever they look like."""
    name, value = parse_header(text)
    return name, value if name in NUMERIC else text.partition("=")[2]


@click.command()
@click.argument("queue")
@click.option("--count", "number", default=1, show_default=True, help="How many messages.")
@click.option(
    "--ack-mode", type=click.Choice(list(ACK_MODES)), default="requeue", show_default=True, help="What happens to them."
)
@vhost_option
@json_option
@api_options
def get(api: Api, queue: str, number: int, ack_mode: str, vhost: str, *, as_json: bool) -> int:
    """Get messages of QUEUE, and put them back unless told otherwise. Exits with 1 where there is none."""
    asked = {"count": number, "ackmode": ACK_MODES[ack_mode], "encoding": "auto"}
    messages = api.call("POST", "queues", vhost, queue, "get", body=asked)
    if as_json:
        print_json(messages)
    elif not messages:
        show("No messages.")
    else:
        rows = [
            [each["exchange"], each["routing_key"], each["redelivered"], each["properties"], _payload(each)]
            for each in messages
        ]
        show_rows(["exchange", "routing key", "redelivered", "properties", "payload"], rows, "")
    return 0 if messages else 1


def _payload(message: dict[str, Any]) -> str:
    text: str = message["payload"]
    shown = text[:SHOWN_BYTES] + ("…" if len(text) > SHOWN_BYTES else "")
    return f"base64 {shown}" if message["payload_encoding"] == "base64" else shown


@click.command()
@click.argument("queue")
@vhost_option
@api_options
def purge(api: Api, queue: str, vhost: str) -> None:
    """Remove all ready messages of QUEUE."""
    api.call("DELETE", "queues", vhost, queue, "contents")
    show(f"queue {queue} purged")


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("--count", "number", type=int, help="At most so many; all unless told.")
@vhost_option
@api_options
def move(api: Api, source: str, destination: str, number: int | None, vhost: str) -> None:
    """Move messages from the queue SOURCE to the end of DESTINATION, with their routing keys and properties."""
    body: dict[str, Any] = {"destination": destination}
    if number is not None:
        body["count"] = number
    moved = api.call("POST", "queues", vhost, source, "move", body=body)["moved"]
    show(Text(f"{count(moved, 'message')} moved from {source} to {destination}"))
