"""A batch of the journal that cannot be written: nothing is lost, nothing comes back, and removals go first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holtmq.broker import memory as memory_module
from holtmq.errors import StoreFullError
from holtmq.steps import complete
from tests.broker.conftest import Bench, Client

BIG = bytes(100_000)


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "a.db")
    yield bench
    bench.journal.close()


@pytest.fixture
def client(filed: Bench) -> Client:
    client = filed.client()
    client.declare("dead", durable=True)
    client.declare("other", durable=True)
    client.declare("q", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    filed.to_disk()
    return client


def publish(client: Client, *bodies: bytes) -> None:
    for body in bodies:
        client.publish("", "q", body, delivery_mode=2)


def fail(bench: Bench) -> None:
    """Try to write a batch to a file that is not allowed to grow."""
    connection = bench.database.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    bench.broker.sealed()
    bench.journal.gather()
    assert bench.journal.begin()
    with pytest.raises(StoreFullError):
        complete(bench.journal.write())


def make_room(bench: Bench) -> None:
    bench.database.connection.execute("PRAGMA max_page_count = 1000000")


def relieve(bench: Bench) -> bool:
    bench.broker.sealed()
    bench.journal.gather()
    return bench.journal.relieve(0)


def left(bench: Bench, queue: str = "q") -> list[bytes]:
    """Return the messages of a queue, by length if they are big."""
    client = bench.client()
    return [body if len(body) < 10 else b"big" for body in iter(lambda: client.get(queue), None)]


def after_crash(bench: Bench, path: Path, queue: str = "q") -> list[bytes]:
    crashed = bench.after_crash(path)
    found = left(crashed, queue)
    crashed.journal.close()
    return found


def test_a_batch_is_written_with_what_came_later(filed: Bench, client: Client, tmp_path: Path) -> None:
    publish(client, b"1", BIG)
    fail(filed)
    publish(client, b"2")
    make_room(filed)
    filed.to_disk()
    assert after_crash(filed, tmp_path / "b.db") == [b"1", b"big", b"2"]


def test_a_message_that_was_acknowledged_since_is_never_written(filed: Bench, client: Client, tmp_path: Path) -> None:
    publish(client, BIG, b"2")
    fail(filed)
    assert client.get("q") == BIG
    filed.to_disk()  # there is room for the other message
    assert after_crash(filed, tmp_path / "b.db") == [b"2"]


@pytest.mark.parametrize("is_paged", [True, False])
def test_a_purge_removes_messages_of_a_failed_batch(
    filed: Bench, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_paged: bool
) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 0 if is_paged else 100)
    publish(client, b"1")
    filed.turn()
    publish(client, BIG, b"2")
    fail(filed)
    client.channel.declarer.purge_queue("q")
    filed.to_disk()
    assert after_crash(filed, tmp_path / "b.db") == []


def test_acknowledgements_are_written_before_messages_that_do_not_fit(filed: Bench, client: Client, tmp_path: Path) -> None:
    publish(client, b"1", b"2", b"3")
    filed.to_disk()
    publish(client, BIG)
    fail(filed)
    assert [client.get("q"), client.get("q")] == [b"1", b"2"]
    assert relieve(filed)
    assert after_crash(filed, tmp_path / "b.db") == [b"3"]
    make_room(filed)
    filed.to_disk()
    assert after_crash(filed, tmp_path / "c.db") == [b"3", b"big"]


def test_a_dead_letter_is_not_removed_before_it_is_stored_elsewhere(filed: Bench, client: Client, tmp_path: Path) -> None:
    publish(client, b"1", BIG)
    filed.to_disk()
    client.consume("q")
    filed.turn()
    filed.to_disk()
    publish(client, BIG)
    fail(filed)
    client.channel.reject(2, multiple=True, requeue=False)
    relieve(filed)
    assert after_crash(filed, tmp_path / "b.db") == [b"1", b"big"]
    make_room(filed)
    filed.to_disk()
    assert after_crash(filed, tmp_path / "c.db", "dead") == [b"1", b"big"]


def test_a_transaction_and_a_move_stay_whole(filed: Bench, client: Client, tmp_path: Path) -> None:
    publish(client, b"1", b"2", b"3")
    filed.to_disk()
    publish(client, BIG)
    fail(filed)
    client.channel.move("q", "other", 1)
    fetched = client.channel.get("q", is_auto_ack=False)
    assert fetched is not None
    client.channel.select_transactions()
    client.channel.ack(fetched.tag, multiple=False)
    client.publish("", "other", b"from the transaction", delivery_mode=2)
    client.channel.commit()
    client.channel.declarer.purge_queue("q")
    relieve(filed)
    assert after_crash(filed, tmp_path / "b.db")[:2] == [b"1", b"2"]
    make_room(filed)
    filed.to_disk()
    assert after_crash(filed, tmp_path / "c.db", "other") == [b"1", b"big"]
    assert after_crash(filed, tmp_path / "d.db") == []


@pytest.mark.parametrize("ends_with", ["purge", "delete"])
def test_emptying_a_queue_removes_chunks_and_not_each_message(bench: Bench, ends_with: str) -> None:
    client = bench.client()
    client.declare("q", durable=True)
    for _ in range(3):
        for _ in range(100):
            client.publish("", "q", b"m", delivery_mode=2)
        bench.to_disk()
    if ends_with == "purge":
        bench.broker.vhosts["/"].queue("q").purge()
    else:
        client.channel.declarer.delete_queue("q", if_unused=False, if_empty=False)
    statements: list[str] = []
    bench.database.connection.set_trace_callback(statements.append)
    bench.to_disk()
    bench.database.connection.set_trace_callback(None)
    assert sum(statement.startswith("DELETE FROM log_chunks") for statement in statements) == 3
    assert bench.database.connection.execute("SELECT count(*) FROM log_slices").fetchone() == (0,)
