"""Queues: list, declare, delete and purge them; get and move their messages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from holtmq.broker.channel import Channel, Fetched
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.stream_queue import StreamQueue
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, FrameError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.listing import Items
from holtmq.management.operations import CHARTS, LIST, LISTING, NO_CONTENT, OBJECT, Call, Outcome, api, created
from holtmq.management.resources.bindings import LISTED_BINDINGS, implicit
from holtmq.management.slices import finish
from holtmq.management.statistics import LENGTHS
from holtmq.management.store_answers import answer_of, when_read
from holtmq.management.views import binding_view, consumer_view, plain_queue, queue_view
from holtmq.steps import Steps
from holtmq.store.stream_port import StreamMessage
from holtmq.table import describe
from holtmq.table_json import to_json
from holtmq.topology import Binding
from holtmq.topology.definitions_file import Fields
from holtmq.wire.content import Properties, make_content

ACK_MODES = ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false", "reject_requeue_false")
MAX_MESSAGES = 10_000
MAX_BYTES = 16 * 1024 * 1024
"""Total size of the bodies above which one `get` returns no more messages."""
MOVED = 500
"""Number of messages moved in one batch of the journal."""
Found: TypeAlias = tuple[ServedQueue, VirtualHost]
DECLARATION = {
    "type": "object",
    "properties": {
        "durable": {"type": "boolean"},
        "auto_delete": {"type": "boolean"},
        "arguments": {"type": "object"},
    },
}
FETCH = {
    "type": "object",
    "required": ["count", "ackmode", "encoding"],
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_MESSAGES},
        "ackmode": {"enum": list(ACK_MODES)},
        "encoding": {"enum": ["auto", "base64"]},
        "truncate": {"type": "integer", "minimum": 0},
        "offset": {"type": ["string", "integer"]},
    },
}
MOVE = {
    "type": "object",
    "required": ["destination"],
    "properties": {"destination": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
}


@api.collection("/api/queues", query=(*LISTING, *CHARTS, "disable_stats", "enable_queue_totals"))
def queues(call: Call) -> Items[Found]:
    """List the queues of all vhosts that the user can access."""
    return _list(call)


@api.collection("/api/queues/{vhost}", query=(*LISTING, *CHARTS, "disable_stats", "enable_queue_totals"))
def queues_of_vhost(call: Call) -> Items[Found]:
    """List the queues of a vhost."""
    return _list(call)


def _list(call: Call) -> Items[Found]:
    span = call.span("lengths")
    has_stats = not call.flag("disable_stats") and any(map(call.listing.reads, _counted_columns()))

    def view(found: Found) -> dict[str, Any]:
        if has_stats:
            return queue_view(*found, call.statistics, span)
        return plain_queue(*found) | (_totals(found[0]) if call.flag("enable_queue_totals") else {})

    rate = {
        "message_stats.publish_details.rate": lambda found: call.statistics.rate(LENGTHS, "queue", found[1].name, found[0].name)
    }
    return Items(
        [(queue, vhost) for vhost in call.vhosts for queue in vhost.queues.values()],
        view,
        lambda found: (found[0].name,),
        lambda found: (found[1].name, found[0].name),
        {**SORT_KEYS, **rate},
    )


SORT_KEYS: Mapping[str, Callable[[Found], Any]] = {
    "name": lambda found: found[0].name,
    "vhost": lambda found: found[1].name,
    "messages": lambda found: found[0].message_count + found[0].unsettled,
    "messages_ready": lambda found: found[0].message_count,
    "messages_unacknowledged": lambda found: found[0].unsettled,
    "consumers": lambda found: len(found[0].consumers),
}


def _counted_columns() -> tuple[str, ...]:
    """Return the columns that `queue_view` has and `plain_queue` does not."""
    return (
        "messages", "messages_ready", "messages_unacknowledged", "messages_details", "messages_ready_details",
        "messages_unacknowledged_details", "message_stats", "message_bytes", "message_bytes_ready", "messages_ram", "memory",
        "consumers", "effective_policy_definition", "exclusive_consumer_tag", "single_active_consumer_tag",
        "consumer_utilisation", "operator_policy", "owner_pid_details", "first_offset", "last_offset", "first_timestamp",
        "last_timestamp", "segments",
    )  # fmt: skip


def _totals(queue: ServedQueue) -> dict[str, int]:
    ready, unsettled = queue.message_count, queue.unsettled
    return {"messages": ready + unsettled, "messages_ready": ready, "messages_unacknowledged": unsettled}


@api.get("/api/queues/{vhost}/{name}", query=CHARTS)
async def queue(call: Call) -> dict[str, Any]:
    """Return a queue with its consumers and the rates from each exchange."""
    vhost, found = _find(call)
    traffic = await finish(vhost.traffic())
    view = queue_view(found, vhost, call.statistics, call.span("lengths") or call.span("msg_rates"))
    owners = {client.session: client for client in call.node.clients if client.session is not None}
    view["consumer_details"] = [consumer_view(consumer, owners) for consumer in found.consumers]
    view["deliveries"] = []
    view["incoming"] = [
        {"exchange": {"name": exchange, "vhost": vhost.name}, "stats": {"publish_details": {"rate": rate}}}
        for exchange, name in traffic.pairs
        if name == found.name and (rate := call.statistics.rate(0, "pair", vhost.name, exchange, name))
    ]
    return view


@api.add("PUT", "/api/queues/{vhost}/{name}", body=DECLARATION, answers={201: None, 204: None})
def declare_queue(call: Call) -> Outcome:
    """Declare a queue. An existing queue must have the same properties."""
    vhost, fields, name = call.vhost, call.fields(), call.path["name"]
    is_durable, is_auto_delete = fields.flag("durable", default=True), fields.flag("auto_delete", default=False)
    arguments = fields.table("arguments")
    is_new = name not in vhost.queues
    with call.channel(vhost) as (channel, _):
        channel.declarer.declare_queue(
            name, is_durable=is_durable, is_exclusive=False, is_auto_delete=is_auto_delete, arguments=arguments
        )
    return created(is_new=is_new)


@api.add("DELETE", "/api/queues/{vhost}/{name}", query=("if-empty", "if-unused"))
def delete_queue(call: Call) -> Outcome:
    """Delete a queue. With `if-empty=true` or `if-unused=true`, only an empty or unused queue is deleted."""
    vhost, found = _find(call)
    with call.channel(vhost) as (channel, _):
        channel.declarer.delete_queue(found.name, if_unused=call.flag("if-unused"), if_empty=call.flag("if-empty"))
    return NO_CONTENT


@api.collection("/api/queues/{vhost}/{name}/bindings", answers=LISTED_BINDINGS)
def bindings_of_queue(call: Call) -> Items[Binding]:
    """List the bindings of a queue, starting with the one of the default exchange."""
    vhost, found = _find(call)
    bindings = vhost.router.registry.bindings_to("queue", found.name)
    return Items([implicit(vhost.name, found.name), *bindings], binding_view)


@api.add("DELETE", "/api/queues/{vhost}/{name}/contents")
def purge_queue(call: Call) -> Outcome:
    """Purge a queue: delete all ready messages."""
    vhost, found = _find(call)
    with call.channel(vhost) as (channel, _):
        channel.declarer.purge_queue(found.name)
    return NO_CONTENT


@api.add(
    "POST",
    "/api/queues/{vhost}/{name}/actions",
    need=Need.ADMINISTRATOR,
    body={"type": "object", "required": ["action"], "properties": {"action": {"enum": ["sync", "cancel_sync"]}}},
)
def act_on_queue(call: Call) -> Outcome:
    """Accept RabbitMQ's actions for mirrored queues. They have no effect on one node."""
    _find(call)
    action = call.fields().text("action")
    if action not in ("sync", "cancel_sync"):
        raise DefinitionsError("body.action", f"expected sync or cancel_sync, got {action!r}")
    return NO_CONTENT


@api.add("POST", "/api/queues/{vhost}/{name}/get", body=FETCH, answers={200: LIST})
async def get_messages(call: Call) -> list[dict[str, Any]]:
    """Get messages from a queue. `ackmode` decides whether they are requeued or removed.

    Messages of a stream are read and stay, whatever `ackmode` says. `offset` says from where on: `first` (the default), `last`,
    an offset, a time in ISO 8601, or an interval such as `1h`.
    """
    vhost, found = _find(call)
    fields = call.fields()
    count, encoding = _count(fields), fields.text("encoding", "auto")
    mode = fields.text("ackmode")
    truncate = fields.integer("truncate", -1)
    if mode not in ACK_MODES:
        raise DefinitionsError("body.ackmode", f"expected one of {', '.join(ACK_MODES)}, got {mode!r}")
    if encoding not in ("auto", "base64"):
        raise DefinitionsError("body.encoding", f"expected auto or base64, got {encoding!r}")
    views: list[dict[str, Any]] = []
    offset = fields.value("offset")
    if isinstance(found, StreamQueue):
        with call.channel(vhost) as (channel, _):
            stream = channel.stream(found.name)
            place = await answer_of(partial(stream.find, _start("first" if offset is None else offset)))
            room = MAX_BYTES
            while len(views) < count and room > 0:
                chunk = await answer_of(partial(stream.read_chunk, place))
                if chunk is None:
                    break
                messages = islice(chunk.messages(place), count - len(views))
                room = await finish(_read(call, stream, messages, room, views, encoding, truncate), call.node.begin_turn)
                place = chunk.next_offset
        return views
    if offset is not None:
        raise DefinitionsError(
            "body.offset", f"expected none, because queue {found.name!r} is not a stream, got {describe(offset)}"
        )
    with call.channel(vhost) as (channel, _):
        tags: list[int] = []

        def add(one: Fetched) -> None:
            views.append(_message(one, encoding, truncate))
            tags.append(one.tag)

        def settle() -> Steps[None]:
            for tag in tags:
                _settle(channel, tag, mode)
                yield

        await _fetch(call, channel, found.name, count, add)
        await finish(settle(), call.node.begin_turn)
    return views


def _start(offset: Any) -> Any:
    """Return a time for text in ISO 8601, and other values as they are."""
    try:
        moment = datetime.fromisoformat(offset)
    except (TypeError, ValueError):
        return offset
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _read(
    call: Call,
    stream: StreamQueue,
    messages: Iterable[StreamMessage],
    room: int,
    views: list[dict[str, Any]],
    encoding: str,
    truncate: int,
) -> Steps[int]:
    """Add messages of a chunk to the response. Return for how many more bytes there is room."""
    for offset, timestamp_ms, exchange, routing_key, raw, body in messages:
        if room <= 0 or not call.held.add_message(len(body), is_first=not views):
            return 0
        room -= len(body)
        content = make_content(raw, body)
        message = QueuedMessage(offset, Origin(exchange, routing_key), Properties(raw), content, len(body), 1)
        remaining = stream.extent.next_offset - offset - 1
        view = _message(Fetched(0, message, is_redelivered=False, remaining=remaining), encoding, truncate)
        views.append({**view, "offset": offset, "timestamp": timestamp_ms})
        yield
    return room


def _count(fields: Fields) -> int:
    count = fields.integer("count", 0)
    if not 1 <= count <= MAX_MESSAGES:
        raise DefinitionsError("body.count", f"expected a number from 1 to {MAX_MESSAGES}, got {count}")
    return count


async def _fetch(call: Call, channel: Channel, queue: str, count: int, add: Callable[[Fetched], None]) -> None:
    """Fetch messages as long as there is room for them. The one that does not fit is requeued with the channel."""
    number = size = 0

    def fetch() -> Steps[bool]:
        """Fetch what is in memory. Return whether more is being read."""
        nonlocal number, size
        while number < count and size < MAX_BYTES:
            one = channel.get(queue, is_auto_ack=False)
            if one is None:
                return channel.is_reading(queue)
            if not call.held.add_message(one.message.size, is_first=not number):
                return False
            add(one)
            number, size = number + 1, size + one.message.size
            yield
        return False

    while await finish(fetch(), call.node.begin_turn):
        await when_read(channel, queue)


def _settle(channel: Channel, tag: int, mode: str) -> None:
    match mode:
        case "ack_requeue_false":
            channel.ack(tag, multiple=False)
        case "reject_requeue_false":
            channel.reject(tag, multiple=False, requeue=False)
        case _:
            channel.reject(tag, multiple=False, requeue=True)


def _message(fetched: Fetched, encoding: str, truncate: int) -> dict[str, Any]:
    message = fetched.message
    body = message.body if truncate < 0 else message.body[:truncate]
    payload, payload_encoding = _encoded(body, encoding)
    try:
        properties = message.properties.to_dict()
    except FrameError:  # malformed headers; the other properties can still be shown
        properties = message.properties.without_headers()
    return {
        "payload_bytes": message.size,
        "redelivered": fetched.is_redelivered,
        "exchange": message.origin.exchange,
        "routing_key": message.origin.routing_key,
        "message_count": fetched.remaining,
        "properties": {name: _property(value) for name, value in properties.items()},
        "payload": payload,
        "payload_encoding": payload_encoding,
    }


def _property(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # JSON cannot represent other bytes
    written = to_json(value)
    return written["$timestamp"] if isinstance(written, dict) and set(written) == {"$timestamp"} else written


def _encoded(body: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


@api.add("POST", "/api/queues/{vhost}/{name}/move", body=MOVE, answers={200: OBJECT})
async def move_messages(call: Call) -> dict[str, Any]:
    """Move messages to the end of another queue. They keep their exchange, routing key and properties.

    Each message leaves one queue and enters the other in one batch of the journal: it is never in both queues or in neither.
    """
    vhost, source = _find(call)
    fields = call.fields()
    name, limit = fields.text("destination"), fields.integer("count", source.message_count)
    if name == source.name:
        raise DefinitionsError("body.destination", f"expected a different queue, got the source {name!r}")
    if name not in vhost.queues:
        raise NotFoundError(f"no queue {name!r} in vhost {vhost.name!r}")
    if limit < 0:
        raise DefinitionsError("body.count", f"expected an integer above 0, got {describe(limit)}")
    moved = 0
    while moved < limit:
        with call.channel(vhost) as (channel, _):
            count = channel.move(source.name, name, min(MOVED, limit - moved))
            is_reading = not count and channel.is_reading(source.name)
            if is_reading:
                await when_read(channel, source.name)
        moved += count
        await call.node.written()
        if not (count or is_reading):
            break
    return {"moved": moved}


def _find(call: Call) -> tuple[VirtualHost, ServedQueue]:
    vhost, name = call.vhost, call.path["name"]
    if name not in vhost.queues:
        raise NotFoundError(f"no queue {name!r} in vhost {vhost.name!r}")
    return vhost, vhost.queues[name]
