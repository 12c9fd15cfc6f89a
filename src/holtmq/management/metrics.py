"""Metrics for Prometheus. They have RabbitMQ's names wherever the meaning is the same, and RabbitMQ's dashboards can show them.

`/metrics` has totals for the broker; `/metrics/per-object` has one series per queue, exchange and connection.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeAlias

from starlette.responses import Response

from holtmq.broker.consumer import Consumer
from holtmq.broker.stream_queue import StreamQueue
from holtmq.broker.traffic import Inflow, Outflow, Traffic
from holtmq.compatibility import RABBITMQ_VERSION
from holtmq.management.json_stream import streamed
from holtmq.management.node import Node
from holtmq.management.resources.overview import cluster_name_of, memory_used
from holtmq.management.slices import collect, finish
from holtmq.management.views import NODE
from holtmq.steps import Steps, one_by_one

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PROTOCOL = {"protocol": "amqp091"}
CLASSIC = {"protocol": "amqp091", "queue_type": "rabbit_classic_queue"}
Sample: TypeAlias = tuple[Mapping[str, str] | str, float]
QueueRow: TypeAlias = tuple[str, tuple[int, ...]]
"""The labels of a queue and its numbers."""


async def metrics_page(node: Node, *, per_object: bool) -> Response:
    """Return all metrics in Prometheus' text format."""
    counted = await finish(_count(node))
    metrics = _metrics(node, counted, await collect(_queue_rows(node)), per_object=per_object)
    return await streamed((f"{line}\n".encode() for metric in metrics for line in metric), MEDIA_TYPE)


def _metrics(node: Node, counted: Counted, rows: Sequence[QueueRow], *, per_object: bool) -> Iterator[Iterable[str]]:
    yield from _identity(node)
    yield from _process(node)
    yield from _churn(node)
    yield from _messages(node, counted)
    if per_object:
        yield from _queues_one_by_one(rows)
        yield from _streams_one_by_one(node)
        yield from _exchanges_one_by_one(counted)
        yield from _connections_one_by_one(node)
    else:
        yield from _queues(rows)
        yield from _connections(node)


class Counted(NamedTuple):
    """The counters of all vhosts."""

    inflow: Inflow
    outflow: Outflow
    acknowledged: int
    traffic: list[tuple[str, Traffic]]
    """By vhost."""


def _count(node: Node) -> Steps[Counted]:
    inflow, outflow, acknowledged = Inflow(), Outflow(), 0
    traffic: list[tuple[str, Traffic]] = []
    for vhost in list(node.broker.vhosts.values()):
        its_inflow, its_outflow, its_acknowledged = yield from vhost.flows()
        inflow.add(its_inflow)
        outflow.add(its_outflow)
        acknowledged += its_acknowledged
        traffic.append((vhost.name, (yield from vhost.traffic())))
    return Counted(inflow, outflow, acknowledged, traffic)


def _identity(node: Node) -> Iterator[Iterable[str]]:
    labels = {
        "rabbitmq_version": RABBITMQ_VERSION,
        "prometheus_plugin_version": RABBITMQ_VERSION,
        "prometheus_client_version": "holtmq",
        "erlang_version": "",
        "holtmq_version": version("holtmq"),
    }
    yield _gauge("rabbitmq_build_info", "Product and version.", [(labels, 1)])
    cluster = cluster_name_of(node)
    named = {"rabbitmq_node": NODE, "rabbitmq_cluster": cluster, "rabbitmq_cluster_permanent_id": cluster}
    yield _gauge("rabbitmq_identity_info", "Node and cluster name.", [(named, 1)])


def _process(node: Node) -> Iterator[Iterable[str]]:
    config, files, memory = node.config, Path("/proc/self/fd"), node.broker.memory
    opened = sum(1 for _ in files.iterdir()) if files.is_dir() else 0
    for name, text, value in (
        ("rabbitmq_process_resident_memory_bytes", "Resident memory of the broker process.", memory_used()),
        (
            "rabbitmq_resident_memory_limit_bytes",
            "Memory limit. Above it, publishers are blocked.",
            config.memory_bytes,
        ),
        ("holtmq_memory_counted_bytes", "Memory that clients use, as counted against the limit.", memory.total),
        ("holtmq_memory_queues_bytes", "Memory that messages in queues use.", memory.queues),
        ("holtmq_memory_connections_bytes", "Memory that connections use.", memory.connections),
        ("holtmq_memory_requests_bytes", "Memory that HTTP requests under way use.", memory.requests),
        ("holtmq_memory_topology_bytes", "Memory that exchanges, queues and bindings use.", memory.topology),
        ("holtmq_internal_errors", "Internal errors since the broker started.", node.broker.internal_errors.total),
        ("holtmq_dead_letters_dropped", "Dead letters dropped because their chain was too long.", node.broker.dropped_letters),
        ("rabbitmq_process_open_fds", "Open file descriptors.", opened),
        ("rabbitmq_process_max_fds", "Maximum number of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ("rabbitmq_process_open_tcp_sockets", "Open client connections.", len(node.clients)),
        ("rabbitmq_process_max_tcp_sockets", "Maximum number of client connections.", config.max_connections),
        (
            "rabbitmq_disk_space_available_bytes",
            "Free disk space where the data file is.",
            shutil.disk_usage(config.data_folder or Path.cwd()).free,
        ),
        (
            "rabbitmq_disk_space_available_limit_bytes",
            "Free disk space below which publishers are blocked.",
            node.disk_free_limit,
        ),
        ("rabbitmq_erlang_uptime_seconds", "Uptime of the broker.", node.clock.now_ms() / 1000 - node.started_at),
        (
            "rabbitmq_alarms_free_disk_space_watermark",
            "1 if publishers are blocked because the disk is full or cannot be written.",
            node.blocked_for == "disk",
        ),
        ("rabbitmq_alarms_memory_used_watermark", "1 if publishers are blocked because memory is short.", memory.is_alarmed),
        ("rabbitmq_alarms_file_descriptor_limit", "Always 0: connections are limited instead.", 0),
    ):
        yield _gauge(name, text, [({}, value)])


def _churn(node: Node) -> Iterator[Iterable[str]]:
    churn = node.broker.churn
    for name, value in (
        ("connections_opened", churn.connections_opened),
        ("connections_closed", churn.connections_closed),
        ("channels_opened", churn.channels_opened),
        ("channels_closed", churn.channels_closed),
        ("queues_declared", churn.queues_declared),
        ("queues_created", churn.queues_created),
        ("queues_deleted", churn.queues_deleted),
    ):
        yield _counter(f"rabbitmq_{name}_total", f"{name.replace('_', ' ').capitalize()} since startup.", [({}, value)])
    errors = node.broker.read_errors
    yield _counter("holtmq_read_errors_total", "Failed attempts to read messages from the data file.", [({}, errors)])


def _messages(node: Node, counted: Counted) -> Iterator[Iterable[str]]:
    inflow, outflow, acknowledged, _ = counted
    routed = sum(traffic.routed.total() for _, traffic in counted.traffic)
    delivered = outflow.delivered + outflow.sent + outflow.fetched + outflow.fetched_for_good
    for name, text, labels, value in (
        ("messages_received", "Messages received from publishers.", PROTOCOL, inflow.published),
        ("messages_confirmed", "Messages confirmed to publishers.", PROTOCOL, inflow.confirmed),
        ("messages_routed", "Messages routed to queues, counted once per queue.", PROTOCOL, routed),
        ("messages_unroutable_dropped", "Unroutable messages dropped.", PROTOCOL, inflow.dropped),
        ("messages_unroutable_returned", "Unroutable messages returned to publishers.", PROTOCOL, inflow.returned),
        ("messages_delivered", "Messages delivered to consumers and basic.get calls.", CLASSIC, delivered),
        (
            "messages_delivered_consume_manual_ack",
            "Messages delivered to consumers with manual acknowledgement.",
            CLASSIC,
            outflow.delivered,
        ),
        (
            "messages_delivered_consume_auto_ack",
            "Messages delivered to consumers with automatic acknowledgement.",
            CLASSIC,
            outflow.sent,
        ),
        (
            "messages_delivered_get_manual_ack",
            "Messages fetched by basic.get with manual acknowledgement.",
            CLASSIC,
            outflow.fetched,
        ),
        (
            "messages_delivered_get_auto_ack",
            "Messages fetched by basic.get with automatic acknowledgement.",
            CLASSIC,
            outflow.fetched_for_good,
        ),
        ("messages_get_empty", "basic.get calls that found the queue empty.", CLASSIC, outflow.fetched_in_vain),
        ("messages_redelivered", "Messages redelivered.", CLASSIC, outflow.redelivered),
        ("messages_acknowledged", "Messages acknowledged.", CLASSIC, acknowledged),
    ):
        yield _counter(f"rabbitmq_global_{name}_total", text, [(labels, value)])
    for name, value in (
        ("messages_published", inflow.published),
        ("messages_confirmed", inflow.confirmed),
        ("messages_unroutable_returned", inflow.returned),
        ("messages_unroutable_dropped", inflow.dropped),
        ("get_ack", outflow.fetched),
        ("get", outflow.fetched_for_good),
        ("get_empty", outflow.fetched_in_vain),
        ("messages_delivered_ack", outflow.delivered),
        ("messages_delivered", outflow.sent),
        ("messages_redelivered", outflow.redelivered),
        ("messages_acked", acknowledged),
    ):
        yield _counter(f"rabbitmq_channel_{name}_total", "Older name of the rabbitmq_global_ counter.", [({}, value)])
    text = "Stored messages found to be damaged. They are not delivered and stay in the file."
    yield _counter("holtmq_messages_damaged_total", text, [({}, node.broker.journal.damaged)])
    channels = [channel for vhost in node.broker.vhosts.values() for channel in vhost.channels]
    consumers = sum(len(channel.consumers) for channel in channels)
    publishers = sum(1 for channel in channels if any(tally.count for tally in channel.ways.tallies))
    yield _gauge("rabbitmq_global_consumers", "Consumers.", [(PROTOCOL, consumers)])
    yield _gauge("rabbitmq_global_publishers", "Channels that have published.", [(PROTOCOL, publishers)])
    yield _gauge("rabbitmq_consumers", "Consumers.", [({}, consumers)])
    yield _gauge("rabbitmq_channels", "Open channels.", [({}, len(channels))])
    yield _gauge("rabbitmq_connections", "Open connections.", [({}, len(node.clients))])
    queues = sum(len(vhost.queues) for vhost in node.broker.vhosts.values())
    yield _gauge("rabbitmq_queues", "Queues.", [({}, queues)])
    unconfirmed = sum(channel.confirms.published - channel.confirms.confirmed for channel in channels)
    yield _gauge("rabbitmq_channel_messages_unconfirmed", "Messages published but not yet confirmed.", [({}, unconfirmed)])
    unsettled = sum(channel.unsettled_count for channel in channels)
    yield _gauge("rabbitmq_channel_messages_unacked", "Messages delivered but not yet acknowledged.", [({}, unsettled)])


QUEUE_GAUGES = (
    ("messages_ready", "Messages ready for delivery."),
    ("messages_unacked", "Messages delivered but not yet acknowledged."),
    ("messages", "Ready and unacknowledged messages."),
    ("consumers", "Consumers."),
    ("messages_ram", "Ready messages whose body is in memory."),
    ("messages_ram_bytes", "Size of the message bodies in memory."),
    ("messages_ready_bytes", "Size of the bodies of ready messages."),
)


def _queue_rows(node: Node) -> Iterator[QueueRow]:
    """Yield the labels and the numbers of each queue. The labels are formatted once for all metrics of a queue."""
    for vhost in list(node.broker.vhosts.values()):
        for queue in one_by_one(vhost.queues.values()):
            ready, unsettled = queue.message_count, queue.unsettled
            numbers = (
                ready, unsettled, ready + unsettled, len(queue.consumers),
                queue.messages_in_memory, queue.memory, queue.message_bytes, queue.arrived,
            )  # fmt: skip
            yield _labels({"vhost": vhost.name, "queue": queue.name}), numbers


def _queues(rows: Sequence[QueueRow]) -> Iterator[Iterable[str]]:
    for place, (name, text) in enumerate(QUEUE_GAUGES):
        yield _gauge(f"rabbitmq_queue_{name}", text, [({}, _sum(rows, place))])
    arrived = _sum(rows, len(QUEUE_GAUGES))
    yield _counter("rabbitmq_queue_messages_published_total", "Messages published to existing queues.", [({}, arrived)])


def _sum(rows: Sequence[QueueRow], place: int) -> int:
    return sum([values[place] for _, values in rows])


def _queues_one_by_one(rows: Sequence[QueueRow]) -> Iterator[Iterable[str]]:
    for place, (name, text) in enumerate(QUEUE_GAUGES):
        yield _gauge(f"rabbitmq_queue_{name}", text, _column(rows, place))
    arrived = _column(rows, len(QUEUE_GAUGES))
    yield _counter("holtmq_queue_messages_arrived_total", "Messages routed to a queue.", arrived)


def _streams_one_by_one(node: Node) -> Iterator[Iterable[str]]:
    streams = [
        (queue, {"vhost": vhost.name, "queue": queue.name})
        for vhost in node.broker.vhosts.values()
        for queue in vhost.queues.values()
        if isinstance(queue, StreamQueue)
    ]
    extents = [(labels, queue.extent) for queue, labels in streams]
    first = [(labels, extent.first_offset) for labels, extent in extents]
    yield _gauge("holtmq_stream_first_offset", "Offset of the first message of a stream.", first)
    following = [(labels, extent.next_offset) for labels, extent in extents]
    yield _gauge("holtmq_stream_next_offset", "Offset of the next message to be stored in a stream.", following)
    sizes = [(labels, extent.size) for labels, extent in extents]
    yield _gauge("holtmq_stream_bytes", "Size of a stream in the file, in bytes.", sizes)
    chunks = [(labels, extent.chunks) for labels, extent in extents]
    yield _gauge("holtmq_stream_segments", "Chunks of a stream.", chunks)
    consumers = list(_stream_consumers(node, streams))
    offsets = [(labels, queue.next_offset_of(consumer)) for queue, consumer, labels in consumers]
    yield _gauge("holtmq_stream_consumer_offset", "Offset of the next message of a stream for a consumer.", offsets)
    lags = [(labels, queue.lag_of(consumer)) for queue, consumer, labels in consumers]
    yield _gauge("holtmq_stream_consumer_lag", "Messages of a stream that a consumer has not received yet.", lags)


def _stream_consumers(
    node: Node, streams: Iterable[tuple[StreamQueue, dict[str, str]]]
) -> Iterator[tuple[StreamQueue, Consumer, dict[str, str]]]:
    """Yield the consumers of streams with their labels. A tag is unique in its channel only, so the channel is a label too."""
    names = {client.session: client.name for client in node.clients}
    for queue, labels in streams:
        for consumer in queue.consumers:
            connection = names.get(consumer.channel.session)
            if connection is not None:  # None if it has just been closed
                channel = {"connection": connection, "channel": f"{connection} ({consumer.channel.number})"}
                yield queue, consumer, {**labels, **channel, "consumer": consumer.tag}


def _column(rows: Sequence[QueueRow], place: int) -> Iterator[Sample]:
    return ((labels, values[place]) for labels, values in rows)


def _exchanges_one_by_one(counted: Counted) -> Iterator[Iterable[str]]:
    published: list[Sample] = []
    routed: list[Sample] = []
    for vhost, traffic in counted.traffic:
        published += [({"vhost": vhost, "exchange": name}, count) for name, count in traffic.published.items()]
        routed += [({"vhost": vhost, "exchange": name}, count) for name, count in traffic.routed.items()]
    yield _counter("holtmq_exchange_messages_published_total", "Messages published to an exchange.", published)
    yield _counter("holtmq_exchange_messages_routed_total", "Messages routed by an exchange, counted once per queue.", routed)


def _connections(node: Node) -> Iterator[Iterable[str]]:
    churn = node.broker.churn
    received = churn.bytes_received + sum(client.bytes_received for client in node.clients)
    sent = churn.bytes_sent + sum(client.bytes_sent for client in node.clients)
    yield _counter("rabbitmq_connection_incoming_bytes_total", "Bytes received from clients.", [({}, received)])
    yield _counter("rabbitmq_connection_outgoing_bytes_total", "Bytes sent to clients.", [({}, sent)])


def _connections_one_by_one(node: Node) -> Iterator[Iterable[str]]:
    received = [({"connection": client.name}, client.bytes_received) for client in node.clients]
    sent = [({"connection": client.name}, client.bytes_sent) for client in node.clients]
    yield _counter("rabbitmq_connection_incoming_bytes_total", "Bytes received on a connection.", received)
    yield _counter("rabbitmq_connection_outgoing_bytes_total", "Bytes sent on a connection.", sent)


def _gauge(name: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    return _written(name, "gauge", text, samples)


def _counter(name: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    return _written(name, "counter", text, samples)


def _written(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of a metric in Prometheus' text format, version 0.0.4."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {_number(value)}"


def _labels(labels: Mapping[str, str] | str) -> str:
    if isinstance(labels, str):
        return labels
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"
