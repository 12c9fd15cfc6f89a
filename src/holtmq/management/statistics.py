"""Periodic samples of the broker's counters, per object. Rates come from here; totals are read from the broker itself."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from holtmq.broker.channel import Channel
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.traffic import Churn, Inflow, Outflow
from holtmq.broker.vhost import VirtualHost
from holtmq.clock import SteadyClock
from holtmq.management.history import History
from holtmq.management.node import ConnectedClient, Node
from holtmq.management.slices import finish
from holtmq.steps import Steps, one_by_one

KEPT = 61
KEPT_GLOBALLY = 721
OUT = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack")
IN = ("publish", "confirm", "return_unroutable", "drop_unroutable")
QUEUE_COLUMNS = ("messages_ready", "messages_unacknowledged", "messages", "publish", *OUT)
LENGTHS = 3
"""Number of leading columns that are queue lengths. The other columns are counters."""
CHANNEL_COLUMNS = (*IN, *OUT)
EXCHANGE_COLUMNS = ("publish_in", "publish_out")
CONNECTION_COLUMNS = ("recv_oct", "send_oct")
CHURN_COLUMNS = (
    "connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created",
    "queue_deleted",
)  # fmt: skip
VHOST_COLUMNS = ("messages_ready", "messages_unacknowledged", "messages", *CONNECTION_COLUMNS, *IN, *OUT)
NODE_COLUMNS = ("messages_ready", "messages_unacknowledged", "messages", *IN, *OUT, *CHURN_COLUMNS)


DETAILS = {name: f"{name}_details" for name in (*VHOST_COLUMNS, *NODE_COLUMNS, *QUEUE_COLUMNS, *EXCHANGE_COLUMNS)}
IDLE = {"rate": 0.0}


class Span(NamedTuple):
    """The age and the step of a chart, in seconds."""

    age_s: int
    step_s: int


class Statistics:
    """The sampler: it reads all counters every `stats_interval_s` seconds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._histories: dict[Hashable, History] = {}
        self._totals = History(len(NODE_COLUMNS), KEPT_GLOBALLY)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(self._node.config.stats_interval_s)

    async def sample(self) -> None:
        """Sample every object once. Drop the history of objects that no longer exist."""
        old, self._histories = self._histories, await finish(self._sampled())
        await finish(_emptied(old))
        self._totals.add(now_ms(), await finish(node_numbers(self._node)))

    def _sampled(self) -> Steps[dict[Hashable, History]]:
        known: dict[Hashable, History] = {}
        for vhost in list(self._node.broker.vhosts.values()):
            self._add(known, ("vhost", vhost.name), (yield from vhost_numbers(vhost, self._node.clients)))
            traffic = yield from vhost.traffic()
            for exchange, count in traffic.published.items():
                self._add(known, ("exchange", vhost.name, exchange), (count, traffic.routed[exchange]))
                yield
            for pair, count in traffic.pairs.items():
                self._add(known, ("pair", vhost.name, *pair), (count,))
                yield
            for queue in one_by_one(vhost.queues.values()):
                if not queue.is_deleted:
                    self._add(known, ("queue", vhost.name, queue.name), queue_numbers(queue))
                yield
        for client in list(self._node.clients):
            self._add(known, ("connection", client.name), (client.bytes_received, client.bytes_sent))
            for channel in list(client.session.channels.values()) if client.session is not None else ():
                self._add(known, ("channel", client.name, channel.number), channel_numbers(channel))
                yield
            yield
        return known

    def _add(self, known: dict[Hashable, History], key: Hashable, values: Sequence[int]) -> None:
        history = self._histories.get(key) or History(len(values), KEPT)
        history.add(now_ms(), values)
        known[key] = history

    def history(self, *key: Hashable) -> History | None:
        """Return the history of an object, for example `("queue", vhost, name)`."""
        return self._histories.get(key)

    @property
    def totals(self) -> History:
        """The history of the whole broker."""
        return self._totals

    def rate(self, column: int, *key: Hashable) -> float:
        """Return the current rate of a column of an object."""
        history = self._histories.get(key)
        return history.rate(column) if history is not None else 0.0


def _emptied(histories: dict[Hashable, History]) -> Steps[None]:
    """Free histories one by one: a deleted vhost may leave tens of thousands."""
    while histories:
        histories.popitem()
        yield


CLOCK = SteadyClock()
"""Rates are differences in time, which must not jump."""


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return CLOCK.now_ms()


def queue_numbers(queue: ServedQueue) -> tuple[int, ...]:
    """Return the values of `QUEUE_COLUMNS`."""
    ready, unsettled = queue.message_count, queue.unsettled
    return (ready, unsettled, ready + unsettled, queue.arrived, *_out(queue.outflow, queue.acknowledged))


def channel_numbers(channel: Channel) -> tuple[int, ...]:
    """Return the values of `CHANNEL_COLUMNS`."""
    flow = channel.outflow
    return (*_in(channel.inflow), *_out(flow, flow.acknowledged(channel.unsettled_count)))


def vhost_numbers(vhost: VirtualHost, clients: Iterable[ConnectedClient]) -> Steps[tuple[int, ...]]:
    """Return the values of `VHOST_COLUMNS`."""
    here = [client for client in clients if client.session is not None and client.session.vhost is vhost]
    octets = sum(client.bytes_received for client in here), sum(client.bytes_sent for client in here)
    counts = yield from lengths(vhost)
    return (*counts, *octets, *(yield from _flows(vhost)))


def node_numbers(node: Node, vhosts: Iterable[VirtualHost] | None = None) -> Steps[tuple[int, ...]]:
    """Return the values of `NODE_COLUMNS` for the whole broker, or for some vhosts only."""
    rows = [(0,) * (LENGTHS + len(IN) + len(OUT))]
    for vhost in list(node.broker.vhosts.values() if vhosts is None else vhosts):
        counts = yield from lengths(vhost)
        rows.append((*counts, *(yield from _flows(vhost))))
    return (*(sum(column) for column in zip(*rows, strict=True)), *_churn(node.broker.churn))


def lengths(vhost: VirtualHost) -> Steps[tuple[int, int, int]]:
    """Return the number of ready, unacknowledged and all messages of a vhost."""
    ready = unsettled = 0
    for queue in one_by_one(vhost.queues.values()):
        ready += queue.message_count
        unsettled += queue.unsettled
        yield
    return ready, unsettled, ready + unsettled


def stats(
    columns: Sequence[str], values: Sequence[int], history: History | None, span: Span | None, first: int = 0
) -> dict[str, Any]:
    """Return the numbers with their rates, as `name` and `name_details`. `first` is the first column of the history.

    With ten thousand queues this is most of the work of a list (benchmarks/management.py), and most queues are idle.
    """
    found: dict[str, Any] = {}
    rates = history.rates() if history is not None and span is None else ()
    for place, name in enumerate(columns, first):
        found[name] = values[place]
        if history is not None and span is not None:
            found[DETAILS[name]] = history.samples(place, now_ms(), span.age_s, span.step_s)
        else:
            found[DETAILS[name]] = {"rate": rates[place]} if rates else IDLE
    return found


def with_deliver_get(found: dict[str, Any]) -> dict[str, Any]:
    """Add `deliver_get`, RabbitMQ's sum of all kinds of delivery."""
    if not found:
        return found
    parts = ("deliver", "deliver_no_ack", "get", "get_no_ack")
    details = [found[DETAILS[name]] for name in parts]
    found["deliver_get"] = found["deliver"] + found["deliver_no_ack"] + found["get"] + found["get_no_ack"]
    found["deliver_get_details"] = {"rate": round(sum([each["rate"] for each in details]), 1)}
    if "samples" in details[0]:
        rows = zip(*(each["samples"] for each in details), strict=True)
        found["deliver_get_details"]["samples"] = [
            {"sample": sum(part["sample"] for part in row), "timestamp": row[0]["timestamp"]} for row in rows
        ]
    return found


def _in(flow: Inflow) -> tuple[int, ...]:
    return flow.published, flow.confirmed, flow.returned, flow.dropped


def _out(flow: Outflow, acknowledged: int) -> tuple[int, ...]:
    return (
        flow.delivered, flow.sent, flow.fetched, flow.fetched_for_good, flow.fetched_in_vain, flow.redelivered, acknowledged,
    )  # fmt: skip


def _flows(vhost: VirtualHost) -> Steps[tuple[int, ...]]:
    inflow, outflow, acknowledged = yield from vhost.flows()
    return (*_in(inflow), *_out(outflow, acknowledged))


def _churn(churn: Churn) -> tuple[int, ...]:
    return (
        churn.connections_opened, churn.connections_closed, churn.channels_opened, churn.channels_closed,
        churn.queues_declared, churn.queues_created, churn.queues_deleted,
    )  # fmt: skip
