"""A HoltMQ file as a whole: its topology, publishing, transactions, and what survives closing it."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

import holtmq
from holtmq.table import FieldValue
from tests.embedded.conftest import Clock


def test_a_message_reaches_every_queue_of_its_route_and_its_body_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path) as mq:
        mq.declare_exchange("x", "fanout")
        for name in ("a", "b", "c"):
            mq.declare_queue(name)
            mq.bind(name, "x")
        message_id = mq.publish("hello", "k", exchange="x")
        rows = sqlite3.connect(path).execute("SELECT count(*), sum(body = 'hello') FROM messages").fetchone()
        assert rows[0] == 1
        for name in ("a", "b"):
            message = mq.queue(name).pop()
            assert message is not None
            assert (message.id, message.exchange, message.text) == (message_id, "x", "hello")
            message.ack()
        assert mq.queue("c").size() == 1
        mq.queue("c").purge()
        assert sqlite3.connect(path).execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_a_message_without_a_queue_is_not_kept(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange("x", "direct")
    assert mq.publish("m", "k", exchange="x") is None
    with pytest.raises(holtmq.NotFoundError, match="no exchange 'nowhere' in vhost '/'"):
        mq.publish("m", "k", exchange="nowhere")


def test_bindings_give_priority_and_time_to_live_where_the_message_has_none(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    mq.declare_exchange("x", "topic")
    queue = mq.declare_queue("q", max_priority=9)
    mq.bind("q", "x", "#", arguments={"x-priority": 7, "x-message-ttl": 1000})
    mq.publish("bound", "k", exchange="x")
    mq.publish("own", "k", exchange="x", priority=9, ttl_ms=60_000)
    messages = queue.list_messages()
    assert [(m.text, m.priority) for m in messages] == [("bound", 7), ("own", 9)]
    clock.advance(1.001)
    assert [m.text for m in queue.pop_many(5)] == ["own"]


def test_a_full_queue_among_several_gets_nothing_and_the_others_do(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange("x", "fanout")
    small, large = mq.declare_queue("small", max_length=1), mq.declare_queue("large")
    for name in ("small", "large"):
        mq.bind(name, "x")
    for _ in range(3):
        mq.publish("m", exchange="x")
    assert (small.size(), large.size()) == (1, 3)


def test_bcc_adds_keys_and_is_not_delivered(mq: holtmq.EmbeddedBroker) -> None:
    """As in the broker, and in RabbitMQ: who gets a blind copy is nobody else's business."""
    mq.declare_exchange("x", "direct")
    dead_letters: dict[str, FieldValue] = {"x-dead-letter-exchange": "x"}
    for name in ("known", "blind"):
        mq.declare_queue(name, arguments=dead_letters)
        mq.bind(name, "x", name)
    stream = mq.declare_stream("log")
    mq.bind("log", "x", "known")
    mq.publish("m", "known", exchange="x", headers={"CC": ["nobody"], "BCC": ["blind"], "n": 1})
    known, blind = mq.queue("known").pop(), mq.queue("blind").pop()
    assert known is not None
    assert blind is not None
    (logged,) = stream.read()
    assert [known.headers, blind.headers, logged.headers] == [{"CC": ("nobody",), "n": 1}] * 3
    known.reject()  # its dead letter has the keys that it shows
    assert (mq.queue("known").size(), mq.queue("blind").size()) == (1, 0)


def test_everything_is_there_again_after_opening_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    arguments: dict[str, FieldValue] = {"x-match": "any", "n": 1, "f": 1.0, "b": b"\x00", "t": {"l": [None, True]}}
    with holtmq.open(path) as mq:
        mq.declare_exchange("h", "headers", arguments={"alternate-exchange": "lost"})
        mq.declare_queue("q", max_length=10, max_attempts=3)
        mq.bind("q", "h", "k", arguments=arguments, metadata={"plugin": {"on": True}})
        before = mq.topology()
        mq.publish("m", exchange="h", headers={"n": 1})
    with holtmq.open(path) as mq:
        assert mq.topology() == before
        (binding,) = mq.topology().bindings
        assert (binding.arguments, binding.metadata, binding.created_at is not None) == (
            arguments,
            {"plugin": {"on": True}},
            True,
        )
        message = mq.queue("q").pop()
        assert message is not None
        assert message.text == "m"
        assert message.headers == {"n": 1}
        with pytest.raises(holtmq.PreconditionFailedError, match="inequivalent arg 'x-max-length'"):
            mq.declare_queue("q", max_length=11, max_attempts=3)
    assert holtmq.Topology.load(path) == before


def test_an_unbind_must_name_the_arguments(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange("x", "direct")
    mq.declare_queue("q")
    mq.bind("q", "x", "k", arguments={"a": 1})
    with pytest.raises(holtmq.BindingArgumentsMismatchError) as refusal:
        mq.unbind("q", "x", "k", arguments={"a": 1.0})
    assert (refusal.value.reply_code, refusal.value.class_id, refusal.value.method_id) == (406, 50, 50)
    mq.unbind("q", "x", "k", arguments={"a": 1})
    assert mq.topology().bindings == ()


def test_deleting_a_queue_deletes_its_messages_and_bindings(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange("x", "fanout")
    mq.declare_queue("q")
    mq.bind("q", "x")
    mq.publish("m", exchange="x")
    mq.queue("q").put("n")
    mq.delete_queue("q")
    assert mq.topology().queues == mq.topology().bindings == ()
    assert mq.queue("q").size() == 0


def test_a_transaction_is_all_or_nothing(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.queue("in")
    queue.put("m")

    def change_of_mind() -> None:
        with mq.transaction():
            message = queue.pop()
            assert message is not None
            message.ack()
            mq.declare_exchange("x", "fanout")
            mq.declare_queue("out")
            mq.bind("out", "x")
            mq.publish("result", exchange="x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_of_mind()
    assert [q.name for q in mq.topology().queues] == ["in"]
    with mq.transaction():
        message = queue.pop()
        assert message is not None
        assert message.attempts == 1
        message.ack()
        mq.queue("out").put("result")
    assert (queue.size(), mq.queue("out").size()) == (0, 1)


def test_space_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq:
        empty = path.stat().st_size
        queue = mq.queue("q")
        queue.put_many([(b"x" * 1000, f"k.{n}") for n in range(5000)])
        queue.purge()
        mq.vacuum()
        assert path.stat().st_size <= empty + 200_000
        queue.put("again", "k.1")
        message = queue.pop("k.*")
        assert message is not None
        assert message.text == "again"


def test_space_can_be_given_back_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as one, holtmq.open(path, durability="off") as other:
        writer = threading.Thread(target=lambda: [one.queue("q").put("m", f"k{n}") for n in range(300)])
        writer.start()
        while writer.is_alive():
            other.vacuum()
        assert other.queue("q").size() == 300


def test_another_who_has_the_file_open_notices_that_keys_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path) as one, holtmq.open(path) as other:
        one.queue("q").put("m", "a.b")
        assert other.queue("q").pop("a.*") is not None
        one.queue("q").purge()
        other.delete_queue("q")
        other.vacuum()
        one.queue("q").put("new", "a.b")
        message = other.queue("q").pop("a.b")
        assert message is not None
        assert message.text == "new"


def test_the_seeds_view_of_segments_is_there(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path) as mq:
        message_id = mq.queue("q").put("m", "orders.electronics.laptops")
        rows = sqlite3.connect(path).execute(
            "SELECT segment_position, segment_value FROM routing_segments WHERE message_id = ? ORDER BY 1", (message_id,)
        )
        assert rows.fetchall() == [(0, "orders"), (1, "electronics"), (2, "laptops")]


def test_explain_works_on_the_file(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange("orders", "topic")
    mq.declare_queue("laptops")
    mq.bind("laptops", "orders", "orders.*.laptops")
    assert mq.explain("orders", ["orders", "eu", "laptops"]).queues == ("laptops",)


def test_a_closed_file_says_so(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.queue("q")
    mq.close()
    with pytest.raises(holtmq.StoreClosedError, match="was closed"):
        queue.put("m")


def test_a_queue_that_another_process_has_declared_again_is_found(tmp_path: Path) -> None:
    with holtmq.open(tmp_path / "a.db") as mq, holtmq.open(tmp_path / "a.db") as other:
        queue = mq.queue("q")
        for use in (lambda: queue.put("m", "k"), queue.pop, lambda: queue.ack_many([])):
            mq.delete_queue("q")
            other.declare_queue("q")
            use()
