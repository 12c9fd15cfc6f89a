"""The JSON form of exchanges, queues, bindings and clients, with RabbitMQ's field names."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from holtmq.broker.channel import Channel
from holtmq.broker.consumer import Consumer
from holtmq.broker.reply import ReplyDestination
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.session import Session
from holtmq.broker.stream_queue import StreamQueue
from holtmq.broker.vhost import VirtualHost
from holtmq.management.node import ConnectedClient
from holtmq.management.statistics import (
    CHANNEL_COLUMNS,
    CONNECTION_COLUMNS,
    EXCHANGE_COLUMNS,
    LENGTHS,
    QUEUE_COLUMNS,
    Span,
    Statistics,
    channel_numbers,
    queue_numbers,
    stats,
    with_deliver_get,
)
from holtmq.table import to_plain
from holtmq.table_json import table_to_json
from holtmq.topology import Binding, Exchange, Policy

NODE = f"holtmq@{socket.gethostname()}"
HASH_BYTES = 9


def plain_queue(queue: ServedQueue, vhost: VirtualHost) -> dict[str, Any]:
    """Return a queue without message counts and rates."""
    declared, policy = queue.declared, vhost.router.registry.queue_policy(queue.name)
    return {
        "name": queue.name,
        "vhost": declared.vhost,
        "durable": declared.durable,
        "auto_delete": declared.auto_delete,
        "exclusive": declared.exclusive,
        "arguments": table_to_json(declared.arguments),
        "type": declared.arguments.get("x-queue-type", "classic"),
        "policy": policy.name if policy is not None else None,
        "node": NODE,
        "state": "running",
    }


def queue_view(queue: ServedQueue, vhost: VirtualHost, statistics: Statistics, span: Span | None = None) -> dict[str, Any]:
    """Return a queue with message counts and rates."""
    history = statistics.history("queue", vhost.name, queue.name)
    numbers = queue_numbers(queue)
    policy = vhost.router.registry.queue_policy(queue.name)
    owner = queue.owner
    return {
        **plain_queue(queue, vhost),
        **stats(QUEUE_COLUMNS[:LENGTHS], numbers, history, span),
        "message_stats": with_deliver_get(stats(QUEUE_COLUMNS[LENGTHS:], numbers, history, span, LENGTHS))
        if any(numbers[LENGTHS:])
        else {},
        "message_bytes": queue.message_bytes,
        "message_bytes_ready": queue.message_bytes,
        "messages_ram": queue.messages_in_memory,
        "memory": queue.memory,
        "consumers": len(queue.consumers),
        "consumer_utilisation": None,
        "operator_policy": None,
        "effective_policy_definition": to_plain(policy.definition) if policy is not None else {},
        "exclusive_consumer_tag": next((one.tag for one in queue.consumers if one.is_exclusive), None),
        "single_active_consumer_tag": queue.active_tag,
        **({"owner_pid_details": {"name": None}} if owner is not None else {}),
        **(_stream_fields(queue) if isinstance(queue, StreamQueue) else {}),
    }


def _stream_fields(stream: StreamQueue) -> dict[str, Any]:
    """Return where a stream begins and ends. The offsets of an empty one are null."""
    extent = stream.extent
    return {
        "first_offset": extent.first_offset if extent.number else None,
        "last_offset": extent.next_offset - 1 if extent.number else None,
        "first_timestamp": extent.first_at,
        "last_timestamp": extent.last_at,
        "segments": extent.chunks,
    }


def exchange_view(exchange: Exchange, vhost: VirtualHost, statistics: Statistics, span: Span | None = None) -> dict[str, Any]:
    """Return an exchange with its message rates."""
    history = statistics.history("exchange", vhost.name, exchange.name)
    _, policy = vhost.router.registry.alternate_exchange(exchange)
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": table_to_json(exchange.arguments),
        "policy": policy.name if policy is not None else None,
        "user_who_performed_action": "",
        "message_stats": {} if history is None else stats(EXCHANGE_COLUMNS, history.last(), history, span),
    }


def binding_view(binding: Binding) -> dict[str, Any]:
    """Return a binding. `created_at` and `metadata` are HoltMQ's own; an implicit binding has neither."""
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.routing_key,
        "arguments": table_to_json(binding.arguments),
        "properties_key": properties_key(binding),
        "created_at": _utc(binding.created_at).isoformat() if binding.created_at is not None else None,
        "metadata": table_to_json(binding.metadata),
    }


def _utc(time: datetime) -> datetime:
    """Convert to UTC. A definitions file may omit the offset; the time is then taken as UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def properties_key(binding: Binding) -> str:
    """Return the key that identifies a binding between two objects: its routing key and a hash of its arguments, if any."""
    key = quote(binding.routing_key, safe="").replace("~", "%7E")
    if not binding.arguments:
        return key or "~"
    text = json.dumps(table_to_json(binding.arguments), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()[:HASH_BYTES]
    return f"{key}~{base64.urlsafe_b64encode(digest).decode()}"


def policy_view(policy: Policy) -> dict[str, Any]:
    """Return a policy."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": table_to_json(policy.definition),
        "priority": policy.priority,
    }


def connection_view(client: ConnectedClient, statistics: Statistics, span: Span | None = None) -> dict[str, Any]:
    """Return a connection with its data rates."""
    session, wire = client.session, client.connection
    assert session is not None
    history = statistics.history("connection", client.name)
    (peer_host, peer_port), (host, port) = client.peer, client.here
    protocol, cipher = client.tls or (None, None)
    properties = table_to_json(wire.client_properties)
    return {
        "name": client.name,
        "user": session.user.name,
        "vhost": session.vhost.name,
        "user_provided_name": properties.get("connection_name"),
        "state": "blocked" if wire.is_blocked else "running" if client.is_reading else "flow",
        "channels": len(session.channels),
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": client.mechanism,
        "ssl": client.tls is not None,
        "ssl_protocol": protocol,
        "ssl_cipher": cipher,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "host": host,
        "port": port,
        "type": "network",
        "node": NODE,
        "timeout": client.heartbeat_s,
        "frame_max": wire.frame_max,
        "channel_max": wire.channel_max,
        "client_properties": properties,
        "connected_at": int(client.connected_at * 1000),
        "recv_cnt": client.reads,
        "send_cnt": client.writes,
        "send_pend": 0,
        **stats(CONNECTION_COLUMNS, (client.bytes_received, client.bytes_sent), history, span),
    }


def channel_view(channel: Channel, client: ConnectedClient, statistics: Statistics, span: Span | None = None) -> dict[str, Any]:
    """Return a channel with its message rates."""
    history = statistics.history("channel", client.name, channel.number)
    numbers = channel_numbers(channel)
    return {
        "name": f"{client.name} ({channel.number})",
        "number": channel.number,
        "user": channel.session.user.name,
        "vhost": channel.vhost.name,
        "node": NODE,
        "state": "running",
        "connection_details": connection_details(client),
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.consumer_prefetch,
        "global_prefetch_count": channel.prefetch,
        "confirm": channel.confirms.is_selected,
        "transactional": channel.is_transactional,
        "messages_unacknowledged": channel.unsettled_count,
        "messages_unconfirmed": channel.confirms.published - channel.confirms.confirmed,
        "messages_uncommitted": channel.uncommitted,
        "acks_uncommitted": channel.unsettled_count - len(channel.unsettled),
        "message_stats": with_deliver_get(stats(CHANNEL_COLUMNS, numbers, history, span)) if any(numbers) else {},
    }


def connection_details(client: ConnectedClient) -> dict[str, Any]:
    """Return the fields that identify the connection of a channel."""
    host, port = client.peer
    return {"name": client.name, "peer_host": host, "peer_port": port}


def consumer_view(consumer: Consumer, owners: Mapping[Session, ConnectedClient]) -> dict[str, Any]:
    """Return a consumer. `owners` maps sessions to their clients."""
    channel, queue = consumer.channel, consumer.queue
    client = owners.get(channel.session)
    details = {"name": "", "number": channel.number, "user": channel.session.user.name, "node": NODE}
    if client is not None:
        host, port = client.peer
        details |= {
            "name": f"{client.name} ({channel.number})",
            "connection_name": client.name,
            "peer_host": host,
            "peer_port": port,
        }
    is_active = isinstance(queue, ReplyDestination) or queue.active_tag in (None, consumer.tag)
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": channel.vhost.name},
        "ack_required": not consumer.is_auto_ack,
        "exclusive": consumer.is_exclusive,
        "prefetch_count": consumer.prefetch,
        "active": is_active,
        "activity_status": "up" if is_active else "waiting",
        "arguments": table_to_json(consumer.arguments),
        "messages_unacknowledged": consumer.in_flight,
        "channel_details": details,
        **(_place_of(consumer, queue) if isinstance(queue, StreamQueue) else {}),
    }


def _place_of(consumer: Consumer, stream: StreamQueue) -> dict[str, int]:
    """Return the next offset of a consumer of a stream, and how many messages are stored from there on."""
    return {"offset": stream.next_offset_of(consumer), "lag": stream.lag_of(consumer)}


def moment(seconds: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
