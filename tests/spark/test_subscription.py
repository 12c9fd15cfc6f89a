"""The queues of a source: by name, and by a pattern that the management API resolves."""

from __future__ import annotations

from pathlib import Path

import pytest

from holtmq.client.blocking_connection import ConnectionLostError
from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.amqp_options import BrokerOptions, QueueOptions
from holtmq.spark.amqp.receiver import Receiver
from holtmq.spark.amqp.segment import Piece
from holtmq.spark.amqp.spool import Spool
from holtmq.spark.amqp.subscription import QueueListError, Subscription
from tests.amqp_client import Amqp
from tests.server.process import broker_process
from tests.spark.conftest import wait_until


def subscription(port: int, http_port: int, pattern: str, password: str = "guest") -> Subscription:
    broker = BrokerOptions(url=f"amqp://127.0.0.1:{port}", password=password)
    return Subscription(broker, QueueOptions(queue_pattern=pattern, management_url=f"http://127.0.0.1:{http_port}"))


def test_a_pattern_is_resolved_by_the_management_api(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker.db", "--http-port", "0") as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        for name in ("pattern-a", "pattern-b", "pattern", "not-pattern-a"):
            channel.declare(name, durable=True)
        assert subscription(broker.port, broker.http_port, "pattern-.*").names() == ("pattern-a", "pattern-b")
        with pytest.raises(InvalidValueError, match="no queue matches queuePattern 'nothing' in vhost '/'"):
            subscription(broker.port, broker.http_port, "nothing").required_names()
        with pytest.raises(QueueListError, match="refused it with status 401"):
            subscription(broker.port, broker.http_port, ".*", password="wrong").names()


def test_queues_are_chosen_by_a_name_by_several_or_by_a_pattern() -> None:
    choose = QueueOptions.choose
    assert [str(choose("a,b")), str(choose(["a"])), str(choose(["a", "b"])), str(choose(None, "a.*"))] == [
        "a,b", "a", "a, b", "a.*",
    ]  # fmt: skip
    assert [choose("a,b").named(), choose(["a,b"]).named(), choose(("a", "b")).named()] == [("a,b",), ("a,b",), ("a", "b")]
    with pytest.raises(
        InvalidValueError, match="the queue 'b,c' has a comma in its name: read it alone, or by a queue_pattern"
    ):
        choose(["a", "b,c"])
    with pytest.raises(InvalidValueError, match="got none"):
        choose([])


def test_an_unreachable_management_api_is_named() -> None:
    with pytest.raises(ConnectionLostError, match=r"http://127\.0\.0\.1:1 does not answer .* Set managementUrl"):
        subscription(1, 1, ".*").names()


def test_a_receiver_consumes_queues_that_appear_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.spark.amqp.receiver.LOOK_S", 0.0)
    pieces: list[Piece] = []
    spool = Spool(str(tmp_path / "spool"))
    spool.acquire()
    with broker_process(tmp_path / "broker.db", "--http-port", "0") as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        queues = subscription(broker.port, broker.http_port, "orders-.*")
        receiver = Receiver(queues, spool, prefetch=10, piece_rows=10, order=lambda: len(pieces), add=pieces.append)
        receiver.start()
        try:
            for count, name in enumerate(("orders-1", "orders-2"), 1):
                channel.declare(name, durable=True)
                channel.put(name, b"m")
                wait_until(lambda count=count: sum(piece.rows for piece in pieces) == count)  # type: ignore[misc]
        finally:
            receiver.stop()
            receiver.join()
        rows = [row for batch in spool.read(piece.name for piece in pieces) for row in batch.to_pylist()]
    assert [row["source_queue"] for row in rows] == ["orders-1", "orders-2"]
    assert receiver.error is None
