"""holtmq queue: the queues of a HoltMQ file, or of a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.options import (
    argument_option,
    header_option,
    json_option,
    parse_table,
    require_confirmation,
    store_type,
    yes_option,
)
from holtmq.cli.output import print_json, show
from holtmq.cli.stream_start import chosen_start, start_options
from holtmq.cli.stream_view import beginning, describe_stream, grid_of_streams, show_records
from holtmq.cli.super_stream_options import super_stream_options
from holtmq.database_url import shown_path
from holtmq.embedded import EmbeddedBroker, Message
from holtmq.embedded.message import STATE_NAMES
from holtmq.errors import NotFoundError, PreconditionFailedError
from holtmq.queueing.stream_rules import STREAM, is_stream
from holtmq.routing.explanation_text import count
from holtmq.table_json import table_to_json
from holtmq.topology.super_stream import SuperStream

STATES = tuple(dict.fromkeys(STATE_NAMES.values()))
file_argument = click.argument("file", type=store_type)
pattern_option = click.option(
    "--pattern", help="Only messages whose routing key matches this pattern, such as orders.#.premium."
)


@click.group()
def queue() -> None:
    """Work with the queues and streams of a HoltMQ file.

    FILE is a path, or the URL of a PostgreSQL database: postgresql://user@host/database?schema=shop. Leave the password to
    ~/.pgpass or PGPASSWORD: other users of the machine can see command lines.

    For the queues of a running broker, see holtmq list, publish, get, move and purge.
    """


@queue.command("list")
@file_argument
@click.argument("queue", required=False)
@click.option("--state", type=click.Choice(STATES), help="Only messages in this state.")
@click.option("--limit", default=100, show_default=True, help="Maximum number of messages to list.")
@json_option
def list_(file: Path | str, queue: str | None, state: Any, limit: int, *, as_json: bool) -> None:
    """List the queues and streams of FILE, or the messages of QUEUE."""
    with _existing(file) as mq:
        streams = _streams(mq)
        if queue in streams and state is None:
            show_records(list(mq.stream(queue).read(limit=limit)), as_json=as_json)
            return
        if queue is not None:
            _show_messages(_queue(mq, queue).list_messages(state, limit=limit), as_json=as_json)
            return
        queues = [
            {"queue": name} | {state: mq.queue(name).size(state) for state in STATES}
            for name in _names(mq)
            if name not in streams
        ]
        extents = [describe_stream(mq.stream(name)) for name in streams]
    if as_json:
        print_json(queues + extents)
        return
    grid = Grid("queue", *STATES)
    for row in queues:
        grid.add_row(*(Text(f"{value:,}" if isinstance(value, int) else value) for value in row.values()))
    if queues or not streams:
        show(grid if queues else "No queues.")
    if streams:
        show(grid_of_streams(extents))


@queue.command()
@file_argument
@click.argument("queue")
@argument_option
def declare(file: Path | str, queue: str, arguments: tuple[str, ...]) -> None:
    """Declare QUEUE in FILE, for example with --argument x-max-priority=9. Create FILE if it does not exist.

    With --argument x-queue-type=stream, QUEUE is a stream.
    """
    given = parse_table(arguments)
    with EmbeddedBroker(file) as mq:
        is_new = queue not in _names(mq)
        if given.get("x-queue-type") == STREAM:
            mq.declare_stream(queue, arguments=given)
        else:
            mq.declare_queue(queue, arguments=given)
    show(f"Queue {queue} created." if is_new else f"Queue {queue} already exists.")


@queue.command("declare-super-stream")
@file_argument
@super_stream_options
def declare_super_stream(file: Path | str, stream: SuperStream) -> None:
    """Declare the super stream NAME in FILE, as holtmq declare super-stream does on a broker."""
    with EmbeddedBroker(file) as mq, mq.transaction():
        before = mq.topology()
        stream.require_only_partitions([each.destination for each in before.bindings if each.source == stream.name])
        mq.declare_exchange(stream.name, stream.exchange.type, arguments=stream.exchange.arguments)
        for partition, binding in zip(stream.queues, stream.bindings, strict=True):
            mq.declare_stream(partition.name, arguments=partition.arguments)
            mq.bind(partition.name, stream.name, binding.routing_key)
        is_new = len(mq.topology().bindings) > len(before.bindings)
    what = f"Super stream {stream.name} with {count(stream.partitions, 'partition')}"
    show(f"{what} created." if is_new else f"{what} already exists.")


@queue.command()
@file_argument
@click.argument("queue")
@pattern_option
@json_option
def peek(file: Path | str, queue: str, pattern: str | None, *, as_json: bool) -> int:
    """Print the next message and leave it in QUEUE. Exit with code 1 if no message is available."""
    with _existing(file) as mq:
        message = _queue(mq, queue).peek(pattern)
    _show_messages([message] if message else [], as_json=as_json)
    return 0 if message else 1


@queue.command()
@file_argument
@click.argument("queue")
@click.argument("body")
@click.option("--key", default="", help="Routing key.")
@header_option
@click.option("--priority", type=int, help="Priority; the queue must have been declared with x-max-priority.")
@click.option("--ttl-ms", type=int, help="Time to live (TTL) of the message, in milliseconds.")
@click.option("--delay-s", type=float, default=0, help="Delay before the message becomes available, in seconds.")
@json_option
def put(
    file: Path | str, queue: str, body: str, key: str, headers: tuple[str, ...], priority: int | None, ttl_ms: int | None,
    delay_s: float, *, as_json: bool,
) -> None:  # fmt: skip
    """Put a message with the text BODY into QUEUE and print its id. Create QUEUE and FILE if they do not exist.

    If QUEUE is a stream, append the message and print its offset.
    """
    with EmbeddedBroker(file) as mq:
        if queue in _streams(mq):
            if priority is not None or ttl_ms is not None or delay_s:
                raise click.UsageError(f"{queue!r} is a stream: --priority, --ttl-ms and --delay-s have no meaning there")
            offset = mq.stream(queue).append(body, key, headers=parse_table(headers))
            if as_json:
                print_json({"offset": offset})
            else:
                show("Duplicate, not appended." if offset is None else str(offset))
            return
        message_id = mq.queue(queue).put(
            body, key, headers=parse_table(headers), priority=priority, ttl_ms=ttl_ms, delay_s=delay_s
        )
    if as_json:
        print_json({"id": message_id})
    else:
        show(str(message_id))


@queue.command()
@file_argument
@click.argument("queue")
@pattern_option
@click.option("--keep", is_flag=True, help="Do not acknowledge the message; it becomes available again after one minute.")
@json_option
def pop(file: Path | str, queue: str, pattern: str | None, *, keep: bool, as_json: bool) -> int:
    """Print the next message and acknowledge it. Exit with code 1 if no message is available."""
    with _existing(file) as mq:
        message = _queue(mq, queue).pop(pattern)
        _show_messages([message] if message else [], as_json=as_json)
        if message and not keep:
            message.ack()
    return 0 if message else 1


@queue.command()
@file_argument
@click.argument("stream")
@start_options
@click.option("--count", "number", default=10, show_default=True, help="Maximum number of messages to read.")
@pattern_option
@json_option
def get(
    file: Path | str, stream: str, offset: str | None, since: str | None, number: int, pattern: str | None, *, as_json: bool
) -> int:
    """Print messages of STREAM from an offset or a time on. Exit with code 1 if there is none."""
    with _existing(file) as mq:
        _require_known(mq, stream)
        if stream not in _streams(mq):
            raise PreconditionFailedError(f"{stream!r} is a queue, not a stream: see holtmq queue list, peek and pop")
        records = list(mq.stream(stream).read(chosen_start(offset, since), pattern, limit=number))
    show_records(records, as_json=as_json)
    return 0 if records else 1


@queue.command()
@file_argument
@click.argument("queue")
@click.argument("ids", type=int, nargs=-1)
@click.option("--all-failed", is_flag=True, help="Retry all failed and dead messages.")
def retry(file: Path | str, queue: str, ids: tuple[int, ...], *, all_failed: bool) -> None:
    """Make the messages with these IDS, or all failed ones, ready again."""
    with _existing(file) as mq:
        chosen = _queue(mq, queue)
        if all_failed:
            failed = [message.id for state in ("failed", "dead") for message in chosen.list_messages(state, limit=1_000_000)]
            ids += tuple(failed)
        with mq.transaction():
            for message_id in ids:
                chosen.retry(message_id)
    show(f"{count(len(ids), 'message')} made ready.")


@queue.command()
@file_argument
@click.argument("queue")
@yes_option
def purge(file: Path | str, queue: str, *, yes: bool) -> None:
    """Remove all ready messages from QUEUE."""
    require_confirmation(f"Remove all ready messages from queue {queue} in {shown_path(file)}?", yes=yes)
    with _existing(file) as mq:
        removed = _queue(mq, queue).purge()
    show(f"{count(removed, 'message')} removed.")


def _existing(file: Path | str) -> EmbeddedBroker:
    return EmbeddedBroker(file, must_exist=True)


def _queue(mq: EmbeddedBroker, name: str) -> Any:
    _require_known(mq, name)
    if name in _streams(mq):
        raise PreconditionFailedError(f"{name!r} is a stream, which keeps its messages: read them with holtmq queue get")
    return mq.queue(name)


def _require_known(mq: EmbeddedBroker, name: str) -> None:
    known = _names(mq)
    if name not in known:
        raise NotFoundError(f"no queue {name!r} in {mq.path}, expected one of {', '.join(known) or 'none'}")


def _streams(mq: EmbeddedBroker) -> list[str]:
    return [declared.name for declared in mq.topology().queues if is_stream(declared)]


def _names(mq: EmbeddedBroker) -> list[str]:
    return [declared.name for declared in mq.topology().queues]


def _show_messages(messages: list[Message], *, as_json: bool) -> None:
    if as_json:
        print_json([_to_json(message) for message in messages])
        return
    grid = Grid("id", "routing key", "state", "priority", "attempts", "created at", "body")
    for message in messages:
        body = beginning(message.body)
        created = message.created_at.isoformat(sep=" ", timespec="seconds")
        cells = (message.id, message.routing_key, message.state, message.priority, message.attempts, created, body)
        grid.add_row(*(Text(str(cell)) for cell in cells))
    show(grid if messages else "No messages.")


def _to_json(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "routing_key": message.routing_key,
        "exchange": message.exchange,
        "state": message.state,
        "priority": message.priority,
        "attempts": message.attempts,
        "created_at": message.created_at.isoformat(),
        "headers": table_to_json(message.headers),
        "properties": table_to_json(message.properties),
        "body": message.body.decode(errors="replace"),
    }
