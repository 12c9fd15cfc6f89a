"""A file that cannot be read for a while: messages stay where they are, and everything else goes on."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holtmq.broker import memory as memory_module
from holtmq.broker.queue import READ_AGAIN_MS
from tests.broker.conftest import Bench, Client

BODIES = [b"%03d" % number for number in range(300)]


@contextmanager
def unreadable(bench: Bench) -> Iterator[None]:
    """Let SQLite fail with an error of its own whenever it reads messages."""

    def deny(action: int, table: str | None, column: str | None, *_: str | None) -> int:
        is_read = action == sqlite3.SQLITE_READ and table == "log_chunks" and column == "content"
        return sqlite3.SQLITE_DENY if is_read else sqlite3.SQLITE_OK

    bench.database.connection.set_authorizer(deny)
    try:
        yield
    finally:
        bench.database.connection.set_authorizer(None)


@pytest.fixture
def paged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of a queue whose first 20 messages are in memory, and all others in the file."""
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 19)
    bench.turn()
    client = bench.client()
    client.declare("q", durable=True)
    client.declare("dead")
    for body in BODIES[:20]:
        client.publish("", "q", body, delivery_mode=2)
    bench.turn()
    for body in BODIES[20:]:
        client.publish("", "q", body, delivery_mode=2)
    bench.to_disk()
    return client


def test_messages_wait_in_the_file_until_it_can_be_read(bench: Bench, paged: Client, caplog: pytest.LogCaptureFixture) -> None:
    bystander = bench.client()
    bystander.declare("other")
    with caplog.at_level(logging.ERROR), unreadable(bench):
        paged.consume("q")
        bystander.consume("other")
        bystander.publish("", "other", b"alive")
        bench.turn()
        bench.to_disk()
        for _ in range(3):
            bench.turn(READ_AGAIN_MS)
        assert paged.bodies == BODIES[:20]
        assert bystander.bodies == [b"alive"]
    assert [record.message for record in caplog.records] == [
        (
            "cannot read messages of queue 'q' in vhost '/', trying again every 1000 ms: "
            ":memory:: access to log_chunks.content is prohibited"
        )
    ]
    assert bench.broker.read_errors == 3
    bench.turn(READ_AGAIN_MS)
    assert paged.bodies == BODIES


def test_get_and_move_leave_unreadable_messages_in_their_place(bench: Bench, paged: Client) -> None:
    paged.declare("target")
    with unreadable(bench):
        assert paged.channel.move("q", "target", 1000) == 20
        assert paged.get("q") is None
    assert bench.count("q") == 280
    assert paged.get("q") == BODIES[20]


def test_a_requeued_message_that_cannot_be_read_again_keeps_its_place(bench: Bench, paged: Client) -> None:
    paged.consume("q")
    bench.turn()
    bench.to_disk()
    assert paged.bodies == BODIES
    other = bench.client()
    for tag in list(paged.channel.consumers):
        paged.channel.cancel(tag)
    with unreadable(bench):
        paged.channel.reject(0, multiple=True, requeue=True)
        other.consume("q", auto_ack=True)
        bench.turn()
        assert other.bodies == BODIES[:20]
        assert bench.count("q") == 280
    bench.turn(READ_AGAIN_MS)
    bench.turn()
    assert other.bodies == BODIES


def test_a_rejected_message_is_dead_lettered_as_soon_as_it_can_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 0)
    bench.turn()
    client = bench.client()
    client.declare("q", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.declare("dead")
    for body in (b"0", b"1", b"2"):
        client.publish("", "q", body, delivery_mode=2)
        bench.turn()
    assert client.get("q") == b"0"
    bench.to_disk()
    client.consume("q")
    bench.turn()
    bench.to_disk()
    assert client.bodies == [b"1", b"2"]
    with unreadable(bench):
        client.channel.reject(0, multiple=True, requeue=False)
        bench.turn()
        assert bench.count("dead") == 0
    bench.turn(READ_AGAIN_MS)
    bench.to_disk()
    bench.turn()
    assert [client.get("dead"), client.get("dead"), client.get("dead")] == [b"1", b"2", None]
