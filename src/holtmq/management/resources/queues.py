"""Queues: list, declare, delete and purge them; get and move their messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

from holtmq.broker.channel import Channel, Fetched
from holtmq.broker.queue import MessageQueue
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, FrameError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.operations import CHARTS, LIST, LISTING, NO_CONTENT, OBJECT, Call, Outcome, api, created
from holtmq.management.resources.bindings import LISTED_BINDINGS
from holtmq.management.statistics import LENGTHS, Statistics
from holtmq.management.views import binding_view, consumer_view, plain_queue, queue_view
from holtmq.table import describe
from holtmq.table_json import to_json
from holtmq.topology import Binding
from holtmq.topology.definitions_file import Fields

ACK_MODES = ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false", "reject_requeue_false")
MAX_MESSAGES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Maximum total size of the bodies that one `get` returns."""
SLICE = 500
"""Number of queues listed, or messages moved, before the event loop can run other tasks."""
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
    },
}
MOVE = {
    "type": "object",
    "required": ["destination"],
    "properties": {"destination": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
}


@api.collection("/api/queues", query=(*LISTING, *CHARTS, "disable_stats", "enable_queue_totals"))
async def queues(call: Call) -> Any:
    """List the queues of all vhosts that the user can access."""
    return await _list(call)


@api.collection("/api/queues/{vhost}", query=(*LISTING, *CHARTS, "disable_stats", "enable_queue_totals"))
async def queues_of_vhost(call: Call) -> Any:
    """List the queues of a vhost."""
    return await _list(call)


async def _list(call: Call) -> Any:
    """List queues without blocking the event loop. Where the sort key is cheap, only the requested page is built."""
    listing, span = call.listing, call.span("lengths")
    found = [(queue, vhost) for vhost in call.vhosts for _, queue in sorted(vhost.queues.items())]
    matched = [(queue, vhost) for queue, vhost in found if listing.matches(queue.name)]
    sort_key = SORT_KEYS.get(listing.sort or "name")
    if listing.page is not None and sort_key is not None:
        matched.sort(key=lambda pair: sort_key(pair[0], pair[1], call.statistics), reverse=listing.is_reversed)
        counted = len(matched)
        matched = matched[listing.page.start : listing.page.start + listing.page.size]
        return listing.page_of(
            [queue_view(queue, vhost, call.statistics, span) for queue, vhost in matched], counted, len(found)
        )
    is_plain = call.flag("disable_stats") or not any(map(listing.reads, _counted_columns()))
    views: list[dict[str, Any]] = []
    for start in range(0, len(matched), SLICE):
        for queue, vhost in matched[start : start + SLICE]:
            if is_plain:
                view = plain_queue(queue, vhost)
                if call.flag("enable_queue_totals"):
                    view |= _totals(queue)
                views.append(view)
            else:
                views.append(queue_view(queue, vhost, call.statistics, span))
        await asyncio.sleep(0)
    return listing.apply(views, len(found))


SORT_KEYS: Mapping[str, Callable[[MessageQueue, VirtualHost, Statistics], Any]] = {
    "name": lambda queue, _, __: queue.name.lower(),
    "vhost": lambda _, vhost, __: vhost.name.lower(),
    "messages": lambda queue, _, __: queue.message_count + queue.unsettled,
    "messages_ready": lambda queue, _, __: queue.message_count,
    "messages_unacknowledged": lambda queue, _, __: queue.unsettled,
    "consumers": lambda queue, _, __: len(queue.consumers),
    "message_stats.publish_details.rate": lambda queue, vhost, statistics: statistics.rate(
        LENGTHS, "queue", vhost.name, queue.name
    ),
}
"""Sort keys that can be computed without building the whole view of a queue."""


def _counted_columns() -> tuple[str, ...]:
    """Return the columns that `queue_view` has and `plain_queue` does not."""
    return (
        "messages", "messages_ready", "messages_unacknowledged", "messages_details", "messages_ready_details",
        "messages_unacknowledged_details", "message_stats", "message_bytes", "message_bytes_ready", "messages_ram", "memory",
        "consumers", "effective_policy_definition", "exclusive_consumer_tag", "single_active_consumer_tag",
        "consumer_utilisation", "operator_policy", "owner_pid_details",
    )  # fmt: skip


def _totals(queue: MessageQueue) -> dict[str, int]:
    ready, unsettled = queue.message_count, queue.unsettled
    return {"messages": ready + unsettled, "messages_ready": ready, "messages_unacknowledged": unsettled}


@api.get("/api/queues/{vhost}/{name}", query=CHARTS)
def queue(call: Call) -> dict[str, Any]:
    """Return a queue with its consumers and the rates from each exchange."""
    vhost, found = _find(call)
    view = queue_view(found, vhost, call.statistics, call.span("lengths") or call.span("msg_rates"))
    owners = {client.session: client for client in call.node.clients if client.session is not None}
    view["consumer_details"] = [consumer_view(consumer, owners) for consumer in found.consumers]
    view["deliveries"] = []
    view["incoming"] = [
        {"exchange": {"name": exchange, "vhost": vhost.name}, "stats": {"publish_details": {"rate": rate}}}
        for exchange, name in vhost.traffic().pairs
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
def bindings_of_queue(call: Call) -> list[dict[str, Any]]:
    """List the bindings of a queue, starting with the one of the default exchange."""
    vhost, found = _find(call)
    bindings = vhost.router.registry.bindings_to("queue", found.name)
    return [binding_view(binding) for binding in (Binding("", found.name, found.name, vhost=vhost.name), *bindings)]


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
def get_messages(call: Call) -> list[dict[str, Any]]:
    """Get messages from a queue. `ackmode` decides whether they are requeued or removed."""
    vhost, found = _find(call)
    fields = call.fields()
    count, encoding = _count(fields), fields.text("encoding", "auto")
    mode = fields.text("ackmode")
    truncate = fields.integer("truncate", -1)
    if mode not in ACK_MODES:
        raise DefinitionsError("body.ackmode", f"expected one of {', '.join(ACK_MODES)}, got {mode!r}")
    if encoding not in ("auto", "base64"):
        raise DefinitionsError("body.encoding", f"expected auto or base64, got {encoding!r}")
    with call.channel(vhost) as (channel, _):
        fetched = _fetch(channel, found.name, count)
        views = [_message(one, encoding, truncate) for one in fetched]
        if fetched:
            _settle(channel, fetched[-1].tag, mode)
    return views


def _count(fields: Fields) -> int:
    count = fields.integer("count", 0)
    if not 1 <= count <= MAX_MESSAGES:
        raise DefinitionsError("body.count", f"expected a number from 1 to {MAX_MESSAGES}, got {count}")
    return count


def _fetch(channel: Channel, queue: str, count: int) -> list[Fetched]:
    fetched: list[Fetched] = []
    size = 0
    while len(fetched) < count and size < MAX_BYTES:
        one = channel.get(queue, is_auto_ack=False)
        if one is None:
            break
        fetched.append(one)
        size += one.message.size
    return fetched


def _settle(channel: Channel, last_tag: int, mode: str) -> None:
    match mode:
        case "ack_requeue_false":
            channel.ack(last_tag, multiple=True)
        case "reject_requeue_false":
            channel.reject(last_tag, multiple=True, requeue=False)
        case _:
            channel.reject(last_tag, multiple=True, requeue=True)


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
            count = channel.move(source.name, name, min(SLICE, limit - moved))
        moved += count
        await call.node.written()
        if not count:
            break
    return {"moved": moved}


def _find(call: Call) -> tuple[VirtualHost, MessageQueue]:
    vhost, name = call.vhost, call.path["name"]
    if name not in vhost.queues:
        raise NotFoundError(f"no queue {name!r} in vhost {vhost.name!r}")
    return vhost, vhost.queues[name]
