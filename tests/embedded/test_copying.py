"""Copies between files and databases: everything arrives, once, also after a kill, and nothing is overwritten."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holtmq
from holtmq.accounts import Permission, User
from holtmq.config import Config
from holtmq.embedded.copying import copy
from holtmq.errors import InvalidValueError, NotAStoreError, StoreError, StoreOwnedError, StoreUnknownError
from holtmq.server.startup import open_broker
from holtmq.store.opening import watch_owner
from holtmq.store.sql import store_copy as copying
from holtmq.store.sql.account_store import SqlAccounts
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.table import Table
from holtmq.topology import Parameter, Policy
from tests.cutting_proxy import cutting_proxy
from tests.embedded.conftest import Clock
from tests.embedded.test_processes import in_child
from tests.peers.peer import POSTGRES
from tests.peers.postgres import Postgres
from tests.places import database_at, look, look_for_one

pytestmark = pytest.mark.peer(POSTGRES)


def fill(path: str, clock: Clock) -> None:
    """A store with something of everything."""
    with holtmq.open(path, clock=clock) as mq:
        mq.declare_exchange("x", "topic", arguments={"alternate-exchange": "y"})
        for name in ("a", "b"):
            mq.declare_queue(name, max_priority=5, max_attempts=2)
            mq.bind(name, "x", "k.#", metadata={"by": name})
        for n in range(30):
            mq.publish(f"shared {n}", f"k.{n}", exchange="x", headers={"n": n, "at": datetime.fromtimestamp(0, UTC)})
        queue = mq.queue("a")
        queue.put("urgent", "k", priority=5, ttl_ms=3_600_000)
        queue.put("later", "k", delay_s=60)
        queue.put_many([(b"\x00\xff" * 100, f"many.{n % 3}") for n in range(50)])
        for settle in ("ack", "fail", "retry", "retry", "reject"):
            message = queue.pop(lease_s=600)
            assert message is not None
            getattr(message, settle)()
        assert queue.pop(lease_s=600) is not None
        kept = mq.declare_queue("kept", retention_s=3600)
        kept.put("done")
        message = kept.pop()
        assert message is not None
        message.ack()
        stream = mq.declare_stream("events", max_bytes=10**6)
        for n in range(70):
            stream.append(f"event {n}", f"e.{n}", headers={"x-publisher": "p", "x-publishing-id": n + 1})
        stream.append_many([("x" * 1000, "many")] * 1000)
        stream.commit("reader", 17)
        declarations, accounts = SqlDeclarations(mq.database), SqlAccounts(mq.database)
        declarations.set_vhost("other", '{"description": "another"}')
        declarations.set_policy(Policy("p", ".*", Table.of({"max-length": 1000}), "queues", 3, "/"))
        declarations.set_parameter(Parameter("federation", "up", '{"uri": "amqp://"}', "other"))
        accounts.set_user(User("guest", "hash", "rabbit_password_hashing_sha256", ("administrator",)))
        accounts.set_permission(Permission("guest", "other", ".*", ".*", ".*"))


def content(path: str, clock: Clock) -> dict[str, Any]:
    """Everything that a store shows."""
    with holtmq.open(path, clock=clock) as mq:
        stream = mq.stream("events")
        return {
            "topology": mq.topology(),
            "accounts": SqlAccounts(mq.database).load(),
            "parameters": SqlDeclarations(mq.database).parameters(),
            "messages": {
                name: [
                    (
                        m.id,
                        m.body,
                        m.routing_key,
                        m.exchange,
                        m.state,
                        m.priority,
                        m.attempts,
                        m.created_at,
                        m.headers,
                        m.properties,
                    )
                    for m in mq.queue(name).list_messages()
                ]
                for name in ("a", "b", "kept")
            },
            "stream": [(r.offset, r.body, r.routing_key, r.timestamp, r.headers) for r in stream.read()],
            "extent": stream.extent(),
            "positions": (stream.positions(), stream.last_publishing_id("p")),
        }


@pytest.fixture
def places(postgres: Postgres, tmp_path: Path) -> Callable[[str], str]:
    numbers = count()
    return lambda kind: postgres.url() if kind == "postgres" else str(tmp_path / f"{next(numbers)}.db")


@pytest.mark.parametrize("kinds", [("file", "postgres", "file"), ("postgres", "file", "postgres"), ("postgres", "postgres")])
def test_everything_is_copied_there_and_back(places: Callable[[str], str], clock: Clock, kinds: tuple[str, ...]) -> None:
    path = places(kinds[0])
    fill(path, clock)
    before = content(path, clock)
    for kind in kinds[1:]:
        target = places(kind)
        steps: list[tuple[int, int]] = []
        report = copy(path, target, lambda done, total, steps=steps: steps.append((done, total)))  # type: ignore[misc]
        assert content(target, clock) == before
        assert steps[-1][0] == steps[-1][1]
        assert report.messages == sum(map(len, before["messages"].values())) + before["extent"].number
        path = target
    with holtmq.open(path, clock=clock) as mq:
        new = mq.queue("a").put("new", "k")
        assert new > max(message[0] for message in before["messages"]["a"])
        mq.declare_queue("another")
        mq.bind("another", "x", "k.#")
        clock.advance(601)
        texts = [message.body for message in mq.queue("a").pop_many(1000)]
        assert {b"later", b"new"} <= set(texts), "delays and leases go on"
        assert mq.stream("events").append("next") == before["extent"].next_offset


@pytest.mark.parametrize("kinds", [("file", "postgres"), ("postgres", "file")])
def test_a_copy_that_is_killed_goes_on_where_it_was(
    places: Callable[[str], str], clock: Clock, kinds: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = map(places, kinds)
    fill(source, clock)
    before = content(source, clock)
    monkeypatch.setattr(copying, "MOST_AT_ONCE", 10)
    starts = []
    for steps in (1, 3, 6, 1000):

        def copy_and_die(pipe: int, steps: int = steps) -> None:
            noted = iter(range(steps))

            def progress(done: int, total: int) -> None:
                os.write(pipe, b"%8d" % done)
                if next(noted, None) is None:
                    os.kill(os.getpid(), 9)

            copy(source, target, progress)

        said = in_child(copy_and_die, kill_after=1000)
        starts.append(int(said[:8]))
    assert starts == sorted(set(starts)), "each of them continued the one before"
    assert content(target, clock) == before


def test_an_unfinished_copy_has_no_queues_and_is_no_source(
    places: Callable[[str], str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places("file"), places("postgres")
    fill(source, clock)
    monkeypatch.setattr(copying, "MOST_AT_ONCE", 10)
    stop_after_some(source, target)
    assert look_for_one(target, "SELECT count(*) FROM queues") == 0
    with pytest.raises(StoreError, match="is an unfinished copy"):
        copy(target, places("file"))
    with holtmq.open(source, clock=clock) as mq:
        mq.queue("a").put("one more")
    with pytest.raises(StoreError, match="has changed since"):
        copy(source, target)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_nobody_uses_an_unfinished_copy_and_it_can_be_finished(
    places: Callable[[str], str], clock: Clock, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places("file"), places(kind)
    fill(source, clock)
    before = content(source, clock)
    monkeypatch.setattr(copying, "MOST_AT_ONCE", 10)
    stop_after_some(source, target)
    for use in (holtmq.open, holtmq.Topology.load, serve):
        with pytest.raises(StoreOwnedError, match="is an unfinished copy; run `holtmq copy` again"):
            use(target)
    copy(source, target)
    assert content(target, clock) == before


def serve(path: str) -> None:
    """Open a store as a broker does."""
    open_broker(Config(data=path), "amqp://here", 0)


def test_a_standby_waits_for_the_end_of_an_unfinished_copy(
    places: Callable[[str], str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places("file"), places("postgres")
    fill(source, clock)
    monkeypatch.setattr(copying, "MOST_AT_ONCE", 10)
    stop_after_some(source, target)
    with closing(watch_owner(target)) as watch:
        assert "an unfinished copy" in str(watch.look())
        copy(source, target)
        assert watch.look() is None


@pytest.mark.parametrize("kinds", [("file", "file"), ("file", "postgres"), ("postgres", "file")])
def test_a_copy_that_is_complete_says_so_when_it_is_made_again(
    places: Callable[[str], str], clock: Clock, kinds: tuple[str, str]
) -> None:
    source, target = map(places, kinds)
    fill(source, clock)
    first = copy(source, target)
    steps: list[tuple[int, int]] = []
    again = copy(source, target, lambda done, total: steps.append((done, total)))
    assert again == replace(first, was_complete=True)
    assert [done for done, total in steps] == [total for done, total in steps]


@pytest.mark.parametrize("kind", ["file", "postgres"])
@pytest.mark.parametrize("change", ["stream_contents SET content = ?", "messages SET body = ?"])
def test_a_copy_that_differs_in_content_alone_is_no_complete_copy(
    places: Callable[[str], str], clock: Clock, kind: str, change: str
) -> None:
    source, target = places("file"), places(kind)
    fill(source, clock)
    copy(source, target)
    look(target, f"UPDATE {change}", (b"other",))
    with pytest.raises(StoreError, match="has content of its own"):
        copy(source, target)


def test_a_copy_whose_last_answer_was_lost_is_found_complete(
    postgres: Postgres, places: Callable[[str], str], clock: Clock
) -> None:
    source = places("file")
    fill(source, clock)
    with cutting_proxy(postgres.port) as proxy:
        target = postgres.url(port=proxy.port)

        def cut_at_the_end(done: int, total: int) -> None:
            if done == total:
                proxy.cut_at(b"COMMIT", "answer")

        with pytest.raises(StoreUnknownError):
            copy(source, target, cut_at_the_end)
        assert copy(source, target).was_complete


def stop_after_some(source: str, target: str) -> None:
    noted = iter(range(3))

    def progress(done: int, total: int) -> None:
        if next(noted, None) is None:
            raise InterruptedError(f"{done} of {total}")

    with pytest.raises(InterruptedError):
        copy(source, target, progress)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_destination_with_other_content_is_refused(places: Callable[[str], str], clock: Clock, kind: str) -> None:
    source, target = places("file"), places(kind)
    fill(source, clock)
    with holtmq.open(target) as mq:
        mq.declare_exchange("mine")
    with pytest.raises(StoreError, match="has content of its own"):
        copy(source, target)
    with holtmq.open(target) as mq:
        assert [exchange.name for exchange in mq.topology().exchanges] == ["mine"]


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_store_that_is_open_elsewhere_is_not_copied(places: Callable[[str], str], clock: Clock, kind: str) -> None:
    source, target = places(kind), places("file")
    with holtmq.open(source, clock=clock), pytest.raises(StoreOwnedError, match="close it there first"):
        copy(source, target)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_store_is_not_copied_to_itself_however_it_is_named(
    places: Callable[[str], str], clock: Clock, kind: str, tmp_path: Path
) -> None:
    source = places(kind)
    fill(source, clock)
    (tmp_path / "link").symlink_to(tmp_path)
    again = source.replace("127.0.0.1", "localhost") if kind == "postgres" else str(tmp_path / "link" / Path(source).name)
    with pytest.raises(InvalidValueError, match=f"cannot be copied to itself: {re.escape(again)} is the same store"):
        copy(source, again)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_store_that_is_being_copied_is_refused_with_who_copies_it(
    places: Callable[[str], str], clock: Clock, kind: str
) -> None:
    source = places(kind)
    fill(source, clock)
    owner = "holtmq copy (process 1 on another machine)"
    with closing(database_at(source, owner=owner)):
        for use in (holtmq.open, lambda path: copy(path, places("file"))):
            with pytest.raises(StoreOwnedError, match=f"is being copied by {re.escape(owner)}; wait until that has finished"):
                use(source)


def test_nobody_opens_a_store_while_it_is_copied(places: Callable[[str], str], clock: Clock) -> None:
    source, target = places("postgres"), places("file")
    fill(source, clock)
    refused = []

    def progress(done: int, total: int) -> None:
        for path in (source, target):
            with pytest.raises(StoreOwnedError, match="holtmq copy"):
                holtmq.open(path)
            refused.append(path)

    copy(source, target, progress)
    assert set(refused) == {source, target}


def test_a_copy_that_lacks_a_message_is_not_completed(
    places: Callable[[str], str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places("file"), places("postgres")
    fill(source, clock)
    monkeypatch.setattr(copying, "MOST_AT_ONCE", 10)
    stop_after_some(source, target)
    look(target, "DELETE FROM deliveries WHERE message_id = (SELECT min(message_id) FROM deliveries)")
    with pytest.raises(StoreError, match="start the copy again"):
        copy(source, target)
    assert look_for_one(target, "SELECT count(*) FROM queues") == 0


def test_a_source_must_exist(places: Callable[[str], str], tmp_path: Path) -> None:
    for source in (str(tmp_path / "no.db"), places("postgres")):
        with pytest.raises(NotAStoreError):
            copy(source, str(tmp_path / "target.db"))
    with pytest.raises(InvalidValueError, match="to itself"):
        copy("a.db", Path("a.db"))


def test_a_large_copy_keeps_the_file_sound(places: Callable[[str], str]) -> None:
    source, target = places("postgres"), places("file")
    with holtmq.open(source) as mq:
        ids = mq.queue("q").put_many([("m" * 50, f"k.{n % 100}.{n % 7}") for n in range(10_000)])
    copy(source, target)
    with sqlite3.connect(target) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with holtmq.open(target) as mq:
        assert [message.id for message in mq.queue("q").pop_many(10_000, "k.*.3")] == list(ids)[3::7]
