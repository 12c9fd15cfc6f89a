"""A super stream as a declaration: its exchange, its partitions and their bindings."""

from __future__ import annotations

from collections import Counter

import pytest

from holtmq import PreconditionFailedError, Queue, Router, Topology
from holtmq.topology.super_stream import SuperStream


def test_a_super_stream_is_a_hash_exchange_with_streams_of_equal_weight() -> None:
    stream = SuperStream("events", 3, {"x-max-age": "7D"})
    assert (stream.exchange.type, stream.exchange.durable) == ("x-consistent-hash", True)
    assert stream.queues[2] == Queue("events-2", arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    assert [(binding.destination, binding.routing_key) for binding in stream.bindings] == [
        (f"events-{n}", "1") for n in range(3)
    ]
    router = Router(Topology((stream.exchange,), stream.queues, stream.bindings))
    shares = Counter(router.route("events", f"customer.{number}") for number in range(3_000))
    assert shares.keys() == {("events-0",), ("events-1",), ("events-2",)}
    assert min(shares.values()) > 900


def test_the_type_of_a_partition_cannot_be_changed() -> None:
    assert SuperStream("s", 1, {"x-queue-type": "quorum"}).queues[0].arguments == {"x-queue-type": "stream"}


def test_nothing_but_partitions_may_be_bound() -> None:
    stream = SuperStream("events", 3)
    stream.require_only_partitions([])
    stream.require_only_partitions(["events-0", "events-2"])
    with pytest.raises(PreconditionFailedError, match="of which 3 are declared; also bound: audit, events-3"):
        stream.require_only_partitions(["events-3", "events-0", "audit"])
