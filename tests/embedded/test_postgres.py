"""The embedded queue on a PostgreSQL server: connections that are lost, and what only a server can refuse."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holtmq
from holtmq.database_url import DatabaseUrl
from holtmq.errors import (
    InvalidValueError,
    LeaseLostError,
    NotAStoreError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreLostError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnknownError,
    StoreVersionError,
)
from holtmq.store.opening import open_journal
from holtmq.store.postgres import postgres_database, table_sweeper
from holtmq.store.postgres.postgres_connection import connect
from tests.cutting_proxy import CuttingProxy, cutting_proxy
from tests.deadline import PATIENCE_S, eventually
from tests.embedded.test_processes import in_child, in_children, numbers, say
from tests.peers.peer import POSTGRES
from tests.peers.postgres import QUICK, Postgres, postgres_folder, running_postgres
from tests.peers.tcp_proxy import tcp_proxy
from tests.places import look, look_for_one
from tests.ports import port_of, reserve_port

pytestmark = pytest.mark.peer(POSTGRES)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url()


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[CuttingProxy]:
    with cutting_proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    """A server that tests stop, kill and fill."""
    with running_postgres() as server:
        yield server


def schema_of(url: str) -> str:
    return DatabaseUrl.parse(url).schema


# Connections that are lost


def test_a_put_whose_answer_is_lost_says_that_it_may_be_there(postgres: Postgres, proxy: CuttingProxy) -> None:
    url = postgres.url(port=proxy.port)
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        mq.intern("k")
        proxy.cut_at(b"INSERT INTO deliveries", "answer")
        with pytest.raises(StoreUnknownError, match="whether the change was made is unknown"):
            queue.put("m", "k")
        assert queue.size() == 1


def test_a_put_that_may_not_have_arrived_is_not_repeated(postgres: Postgres, proxy: CuttingProxy) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        queue = mq.queue("q")
        mq.intern("k")
        proxy.cut_at(b"INSERT INTO deliveries", "request")
        with pytest.raises(StoreUnknownError):
            queue.put("m", "k")
        assert queue.size() == 0
        queue.put("m", "k")
        assert queue.size() == 1


def test_an_acknowledgement_whose_answer_is_lost_says_so_and_was_made(postgres: Postgres, proxy: CuttingProxy) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        queue = mq.queue("q")
        queue.put("m")
        message = queue.pop()
        assert message is not None
        proxy.cut_at(b"DELETE FROM deliveries", "answer")
        with pytest.raises(StoreUnknownError):
            message.ack()
        assert queue.list_messages() == []


def test_a_pop_whose_answer_is_lost_is_repeated(postgres: Postgres, proxy: CuttingProxy) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        queue = mq.queue("q")
        ids = queue.put_many([("a", "k"), ("b", "k")])
        proxy.cut_at(b"UPDATE deliveries SET state = 1", "answer")
        message = queue.pop()
        assert message is not None
        assert (message.id, queue.size("locked")) == (ids[1], 2), "the first message waits for the end of its lease"


@pytest.mark.parametrize("text", [b"BEGIN", b"INSERT INTO deliveries", b"FROM routing_keys"])
def test_a_transaction_that_was_cut_before_its_end_is_repeated(postgres: Postgres, proxy: CuttingProxy, text: bytes) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        queue = mq.queue("q")
        proxy.cut_at(text, "answer")
        queue.put_many([("a", "k.1"), ("b", "k.2")])
        assert (proxy.cuts, queue.size()) == (1, 2)


def test_a_commit_whose_answer_is_lost_is_unknown_and_not_repeated(postgres: Postgres, proxy: CuttingProxy) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        queue = mq.queue("q")
        for key in ("k.1", "k.2"):
            mq.intern(key)
        proxy.cut_at(b"COMMIT", "answer")
        with pytest.raises(StoreUnknownError):
            queue.put_many([("a", "k.1"), ("b", "k.2")])
        assert queue.size() == 2


def test_a_transaction_of_the_caller_that_was_cut_changes_nothing(postgres: Postgres, proxy: CuttingProxy) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        queue = mq.queue("q")

        def put_two() -> None:
            with mq.transaction():
                queue.put("a")
                proxy.cut_all()
                queue.put("b")

        with pytest.raises(StoreLostError, match="nothing was changed"):
            put_two()
        assert queue.size() == 0


def test_an_error_that_is_caught_within_a_transaction_does_not_hide_that_it_is_rolled_back(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")

        def catch_an_error() -> None:
            with mq.transaction():
                queue.put("a")
                with pytest.raises(StoreError, match="division by zero"), mq.database.transaction() as connection:
                    connection.execute("SELECT 1 / ?", (0,))

        with pytest.raises(StoreError, match="was rolled back"):
            catch_an_error()
        assert queue.size() == 0


def test_a_producer_does_not_repeat_what_may_be_there(postgres: Postgres, proxy: CuttingProxy) -> None:
    with holtmq.open(postgres.url(port=proxy.port)) as mq:
        mq.queue("q")
        mq.intern("k")
        producer = mq.producer("q")
        with mq.database.lock():  # so that the messages are sent together
            futures = [producer.send("m", "k") for _ in range(2)]
            proxy.cut_at(b"COMMIT", "answer")
        for future in futures:
            with suppress(StoreUnknownError):
                future.result(PATIENCE_S)
        assert (proxy.cuts, mq.queue("q").size()) == (1, 2)


def test_everything_goes_on_after_the_server_was_restarted_while_nobody_called(own_server: Postgres) -> None:
    with holtmq.open(own_server.url()) as mq:
        queue = mq.queue("q")
        queue.put("a", "k")
        own_server.stop()
        own_server.start()
        queue.put("b", "k")
        own_server.stop()
        own_server.start()
        messages = [queue.pop(), queue.pop("k")]
        own_server.stop()
        own_server.start()
        for message in messages:
            assert message is not None
            message.ack()
        assert queue.list_messages() == []


def test_threads_wait_while_the_server_is_restarted(own_server: Postgres) -> None:
    with holtmq.open(own_server.url()) as mq:
        queue = mq.queue("q")
        got: list[holtmq.Message | None] = []
        waiting = [
            threading.Thread(target=lambda: got.append(queue.pop(wait_s=PATIENCE_S))),
            threading.Thread(target=lambda: got.append(queue.pop("k.#", wait_s=PATIENCE_S))),
        ]
        for thread in waiting:
            thread.start()
        own_server.kill()
        own_server.start()
        url = mq.path

        def put_two(pipe: int) -> None:
            with holtmq.open(url) as other:
                other.queue("q").put_many([("a", "k.l"), ("b", "k.l")])

        in_child(put_two)
        for thread in waiting:
            thread.join()
        assert sorted(message.text for message in got if message) == ["a", "b"]


def test_a_server_that_stays_away_is_an_error_after_the_timeout(own_server: Postgres) -> None:
    with holtmq.open(own_server.url(), timeout_s=0.5) as mq:
        queue = mq.queue("q")
        own_server.stop()
        try:
            for call in (queue.pop, lambda: queue.put("m"), lambda: queue.put_many([("m", "k")]), queue.size):
                with pytest.raises(StoreLostError, match="cannot be reached"):
                    call()
        finally:
            own_server.start()
        queue.put("m")
        assert queue.size() == 1


class Ledger:
    """What a worker was told about its puts and acknowledgements."""

    def __init__(self) -> None:
        self.put: set[int] = set()
        self.acked: set[int] = set()
        self.perhaps_acked: set[int] = set()
        self.unknown_puts = self.lost_leases = 0

    def work(self, queue: Any, done: int) -> None:
        try:
            self.put.add(queue.put("m", f"k.{done % 7}"))
        except StoreUnknownError:
            self.unknown_puts += 1
        message = queue.pop("k.*" if done % 2 else None, lease_s=PATIENCE_S)
        if message is None:
            return
        try:
            message.ack()
            self.acked.add(message.id)
        except StoreUnknownError:
            self.perhaps_acked.add(message.id)
        except LeaseLostError:
            self.lost_leases += 1  # a crash of the server may undo the latest pops


def test_no_acknowledged_put_is_lost_and_no_acknowledgement_undone_when_the_server_is_killed(own_server: Postgres) -> None:
    url, rounds, stop, progress = own_server.url(), 10, threading.Event(), threading.Semaphore(0)
    ledger = Ledger()

    def work() -> None:
        with holtmq.open(url, timeout_s=PATIENCE_S) as mq:
            done = 0
            while not stop.is_set():
                ledger.work(mq.queue("q"), done)
                done += 1
                if done % 20 == 0:
                    progress.release()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(rounds):
        assert all(progress.acquire(timeout=PATIENCE_S) for _ in range(3))
        own_server.kill()
        own_server.start()
    stop.set()
    for worker in workers:
        worker.join()
    with holtmq.open(url) as mq:
        there = {message.id for message in mq.queue("q").list_messages(limit=1_000_000)}
    assert not ledger.acked & there, "an acknowledgement was undone"
    assert not ledger.put - ledger.acked - ledger.perhaps_acked - there, "a put was lost"
    assert len((there | ledger.acked | ledger.perhaps_acked) - ledger.put) <= ledger.unknown_puts
    assert (len(ledger.acked) > 20 * rounds, ledger.lost_leases <= 2 * rounds) == (True, True)


# Processes


def test_a_killed_worker_gives_its_messages_back_when_the_lease_ends(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put("m")

    def pop_and_die(pipe: int) -> None:
        with holtmq.open(url) as mq:
            message = mq.queue("q").pop(lease_s=0.05)
            assert message is not None
            say(pipe, message.id)
            os.kill(os.getpid(), 9)

    in_child(pop_and_die, kill_after=2)
    with holtmq.open(url) as mq:
        message = mq.queue("q").pop(wait_s=PATIENCE_S)
        assert message is not None
        assert message.attempts == 2


def test_a_fork_leaves_the_connection_to_the_parent(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put("before", "k")
        backend = mq.database.connection.fetch("SELECT pg_backend_pid()")

        def in_the_child(pipe: int) -> None:
            message = queue.pop("k")
            assert message is not None
            message.ack()
            queue.put("from the child", "k")
            mq.close()
            say(pipe, 1)

        waiting = threading.Thread(target=queue.pop, args=("nothing",), kwargs={"wait_s": 0.2})
        waiting.start()
        assert all(numbers(in_child(in_the_child)) == [1] for _ in range(1))
        waiting.join()
        assert mq.database.connection.fetch("SELECT pg_backend_pid()") == backend
        message = queue.pop()
        assert message is not None
        assert message.text == "from the child"


def test_a_wake_up_does_not_wait_for_a_look(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes announce what they put: a waiter that would look again in an hour wakes up."""
    monkeypatch.setattr("holtmq.store.postgres.postgres_database.LOOK_ANYWAY_S", 3600.0)
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        got: list[holtmq.Message | None] = []
        waiting = threading.Thread(target=lambda: got.append(queue.pop(wait_s=PATIENCE_S)))
        waiting.start()

        def put_one(pipe: int) -> None:
            with holtmq.open(url) as other:
                other.queue("q").put("hello")

        in_child(put_one)
        waiting.join()
        assert [message.text for message in got if message] == ["hello"]


def test_a_process_that_no_longer_waits_no_longer_listens(postgres: Postgres, url: str) -> None:
    """Its announcements would pile up in the server, in the queue that all sessions share."""
    with holtmq.open(url) as mq:
        mq.queue("q").pop(wait_s=0.05)
        channel = DatabaseUrl.parse(url).channel
        listening = f"SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN {channel}'"
        with postgres.connect() as connection:
            eventually(lambda: connection.execute(listening).fetchone() == (0,), "the listener to end")


def test_a_purge_leaves_a_message_that_is_being_popped(url: str) -> None:
    with holtmq.open(url) as mq, holtmq.open(url) as other:
        mq.queue("q").put("m")
        got = []
        with mq.transaction():
            message = mq.queue("q").pop()
            purging = threading.Thread(target=lambda: got.append(other.queue("q").purge()))
            purging.start()
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE FROM deliv%'"
            with psycopg.connect(DatabaseUrl.parse(url).conninfo, autocommit=True) as looking:
                eventually(lambda: looking.execute(waits).fetchone() != (0,), "the purge to wait")
        purging.join()
        assert message is not None
        message.ack()
        assert got == [0]


def test_a_deleted_queue_leaves_no_messages_behind(url: str) -> None:
    """A put that is on its way when the queue is deleted is in the queue before, or finds that it is gone."""
    with holtmq.open(url) as mq, holtmq.open(url) as other:
        mq.declare_exchange("x", "fanout")
        for _ in range(15):
            mq.declare_queue("q")
            mq.bind("q", "x")
            started = threading.Event()

            def put_all(started: threading.Event = started) -> None:
                for _ in range(1000):
                    try:
                        other.queue("other").put("m")
                        other.publish("m", exchange="x")
                        other.queue_of("q")
                    except holtmq.HoltmqError:
                        return
                    started.set()
                    if "q" not in {queue.name for queue in other.topology().queues}:
                        return

            putting = threading.Thread(target=put_all)
            putting.start()
            started.wait(PATIENCE_S)
            mq.delete_queue("q")
            putting.join()
        orphans = "SELECT count(*) FROM deliveries WHERE queue_id NOT IN (SELECT id FROM queues)"
        with mq.database.lock() as connection:
            assert connection.fetch(orphans) == [(0,)]


def test_a_vacuum_never_takes_the_routing_key_of_a_message_on_its_way(url: str) -> None:
    stop, failures = threading.Event(), []

    def put_many_keys() -> None:
        with holtmq.open(url) as mq:
            queue = mq.queue("q")
            for n in range(150):
                queue.put_many([("m", f"k.{n % 3}"), ("m", f"k.{n}")])
                queue.put("m", f"k.{n % 5}")
                queue.ack_many(queue.pop_many(3))
                failures.extend(queue.list_messages("damaged"))
        stop.set()

    putting = threading.Thread(target=put_many_keys)
    putting.start()
    with holtmq.open(url) as mq:
        while not stop.is_set():
            mq.vacuum()
    putting.join()
    assert failures == []


def test_many_processes_declare_and_use_the_same_queues_and_keys(url: str) -> None:
    def work(pipe: int) -> None:
        with holtmq.open(url) as mq:
            for n in range(10):
                mq.declare_exchange(f"x{n}", "topic")
                mq.declare_queue(f"q{n}")
                mq.bind(f"q{n}", f"x{n}", "k.#")
                mq.publish("m", f"k.{n}", exchange=f"x{n}")
                mq.queue(f"q{n}").put("m", f"k.{n}.{n}")
                say(pipe, n)

    assert all(numbers(said) == list(range(10)) for said in in_children(work, count=4))
    with holtmq.open(url) as mq:
        assert [mq.queue(f"q{n}").size() for n in range(10)] == [8] * 10
        assert len(mq.topology().bindings) == 10
        with mq.database.lock() as connection:
            assert connection.fetch("SELECT count(*) FROM routing_keys") == [(20,)]


def test_a_limit_holds_for_all_processes_together(url: str) -> None:
    with holtmq.open(url) as mq:
        mq.declare_queue("full", max_length=20)
        mq.declare_queue("latest", arguments={"x-max-length": 20})

    def put_all(pipe: int) -> None:
        with holtmq.open(url) as mq:
            for n in range(30):
                mq.queue("latest").put("m", f"k.{n}")
                try:
                    say(pipe, mq.queue("full").put("m", f"k.{n}"))
                except holtmq.HoltmqError:
                    continue

    said = in_children(put_all, count=4)
    with holtmq.open(url) as mq:
        assert sorted(number for each in said for number in numbers(each)) == [m.id for m in mq.queue("full").list_messages()]
        assert (mq.queue("full").size(), mq.queue("latest").size()) == (20, 20)


def test_messages_of_each_producer_come_in_its_order(url: str) -> None:
    holtmq.open(url).close()

    def put_all(pipe: int) -> None:
        with holtmq.open(url) as mq:
            for n in range(100):
                mq.queue("q").put({"producer": os.getpid(), "n": n})

    producing = threading.Thread(target=in_children, args=(put_all,), kwargs={"count": 3})
    producing.start()
    seen: dict[int, list[int]] = {}
    with holtmq.open(url) as mq:
        for _ in range(300):
            message = mq.queue("q").pop(wait_s=PATIENCE_S)
            assert message is not None
            content = message.json()
            seen.setdefault(content["producer"], []).append(content["n"])
            message.ack()
    producing.join()
    assert list(seen.values()) == [list(range(100))] * 3


def test_leases_follow_the_clock_of_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is an hour ahead does not take the messages of others, and setting its clock changes nothing."""
    with holtmq.open(url) as mq:
        mq.queue("q").put("m")
        message = mq.queue("q").pop(lease_s=60)
        assert message is not None
        hour_ns = 3600 * 10**9
        later_ns = time.time_ns() + hour_ns
        monkeypatch.setattr("time.time", lambda: later_ns / 1e9)
        monkeypatch.setattr("time.time_ns", lambda: later_ns)
        with holtmq.open(url) as other:
            assert other.queue("q").pop() is None
        assert mq.queue("q").pop() is None
        message.ack()


# What a call reads

READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'deliveries' AND schemaname = $1"


def rows_read(mq: holtmq.EmbeddedBroker, call: Callable[[], object]) -> int:
    """Return the number of rows of deliveries that a call reads."""
    with mq.transaction(), mq.database.lock() as connection:
        schema = mq.database.url.schema
        ((before,),) = connection.fetch(READ, schema)
        call()
        ((after,),) = connection.fetch(READ, schema)
    return int(after) - int(before)


def test_no_put_pop_or_settlement_reads_the_whole_queue_even_if_it_was_planned_when_the_queue_was_empty(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        with mq.database.lock() as connection:
            connection.run("ALTER TABLE deliveries SET (autovacuum_enabled = off)")  # it would bring new plans

        def settle(pattern: str | None, name: str) -> None:
            message = queue.pop(pattern)
            if message is not None:
                getattr(message, name)()

        def settle_two(settle: Callable[[list[holtmq.Message]], None]) -> None:
            settle(queue.pop_many(2))

        calls: list[Callable[[], object]] = [
            lambda: queue.put("m", "k.1"),
            lambda: settle(None, "ack"),
            lambda: settle("k.1", "ack"),
            lambda: settle("#.1", "retry"),
            lambda: settle("k.*", "fail"),
            lambda: settle(None, "reject"),
            lambda: settle_two(queue.ack_many),
            lambda: settle_two(queue.give_back),
            lambda: queue.pop("nothing.#"),
            lambda: queue.peek("k.7"),
            lambda: queue.list_messages("failed"),
            queue.prune,
        ]
        for _ in range(7):  # a statement is prepared after five executions
            for call in calls:
                call()
        queue.put_many([("m", f"k.{n % 100}") for n in range(5000)])
        read = [rows_read(mq, call) for call in calls]
        assert {number: rows for number, rows in enumerate(read) if rows > 100} == {}


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_limited_queue_is_counted_once_by_a_put_and_never_by_a_pop(url: str, overflow: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.declare_queue("q", max_length=2000, arguments={"x-overflow": overflow})
        queue.put_many([("m", "k")] * 1000)
        assert 1000 <= rows_read(mq, lambda: queue.put("m", "k")) < 1100
        assert rows_read(mq, queue.pop) < 100
        assert rows_read(mq, lambda: queue.pop_many(2)) < 100


@pytest.mark.parametrize("others", [5, 300, 2000, 4000])
def test_a_consumer_of_one_pattern_finds_its_messages_behind_those_of_another_one(url: str, others: int) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put_many([("other", f"k.{n % 100}.us") for n in range(others)])
        queue.put_many([(f"{n}", f"k.{n}.{'us' if n % 2 else 'eu'}") for n in range(200)])
        popped = [queue.pop("#.eu") for _ in range(100)]
        assert [message and message.text for message in popped] == [f"{n}" for n in range(0, 200, 2)]
        assert queue.pop("#.eu") is None
        queue.give_back([message for message in popped[:2] if message is not None])
        assert len(queue.pop_many(others)) == others
        again = [queue.pop("#.eu"), queue.pop("#.eu"), queue.pop("#.eu")]
        assert [message and message.text for message in again] == ["0", "2", None]


@pytest.mark.parametrize("others", [5, 300, 2000])
@pytest.mark.parametrize("waiting", [1000, 10_000])
def test_a_pop_by_a_pattern_with_many_keys_takes_two_statements_wherever_the_last_match_was(
    url: str, others: int, waiting: int
) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put_many([("m", f"k.{n % 100}.us") for n in range(others)])
        queue.put_many([("m", f"k.{n % 100}.eu") for n in range(waiting)])
        assert queue.pop("k.*.eu") is not None

        def statements() -> int:
            with mq.database.lock() as connection:
                before = connection.executed
                assert queue.pop("k.*.eu") is not None
                number: int = connection.executed - before
            return number

        statements()
        assert [statements() for _ in range(20)] == [2] * 20


@pytest.mark.parametrize("known", [1, 60])  # few keys are looked up, many are compared with the first messages
def test_a_pattern_that_was_used_before_finds_the_keys_that_another_process_has_added(url: str, known: int) -> None:
    with holtmq.open(url) as mq, holtmq.open(url) as other:
        queue = mq.queue("q")
        queue.put_many([("m", f"k.{n}") for n in range(known)])
        for n in range(known):
            message = queue.pop("k.*")
            assert message is not None
            assert message.routing_key == f"k.{n}"
        other.queue("q").put("first", "k.new")
        queue.put("second", "k.0")
        found = [queue.pop("k.*"), queue.pop("k.*"), queue.pop("k.*")]
        assert [message and message.body for message in found] == [b"first", b"second", None]


# Durability


VACUUMS = "SELECT vacuum_count FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'deliveries'"


def test_acknowledged_messages_make_room_without_waiting_for_autovacuum(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sweeper, "SWEEP_AFTER", 100)
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put_many([("m", "k")] * 100)
        queue.ack_many(queue.pop_many(100))

        def vacuums() -> object:
            with mq.database.lock() as connection:
                return connection.fetch(VACUUMS, schema_of(url))[0][0]

        eventually(lambda: vacuums() == 1, "the server to have vacuumed")


def test_a_large_table_is_left_to_autovacuum(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sweeper, "SWEEP_AFTER", 100)
    monkeypatch.setattr(table_sweeper, "LARGEST_BYTES", 0)
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put_many([("m", "k")] * 100)
        queue.ack_many(queue.pop_many(100))
        sweep = next((thread for thread in threading.enumerate() if thread.name == "holtmq-sweeper"), None)
        if sweep is not None:
            sweep.join(PATIENCE_S)
        with mq.database.lock() as connection:
            assert connection.fetch(VACUUMS, schema_of(url)) == [(0,)]


NOTE_COMMITS = """
CREATE TABLE commits (waits_for_disk TEXT);
CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN INSERT INTO commits VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON deliveries DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION note_commit();
"""


def test_puts_and_acknowledgements_wait_for_the_disk_and_pops_do_not(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        with mq.database.lock() as connection:
            connection.run(NOTE_COMMITS)

        def settings() -> list[object]:
            with mq.database.lock() as connection:
                return [setting for (setting,) in connection.fetch("DELETE FROM commits RETURNING waits_for_disk")]

        for _ in range(3):
            queue.put("m", "k.1")
        assert settings() == ["on"] * 3
        messages = [queue.pop(), queue.pop("k.*"), *queue.pop_many(1)]
        assert settings() == ["off"] * 3
        for message in messages:
            assert message is not None
            message.ack()
        assert settings() == ["on"] * 3


def test_a_pop_within_a_transaction_does_not_make_it_forgettable(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        queue.put("m")
        with mq.transaction():
            message = queue.pop()
            assert message is not None
            message.ack()
            mq.queue("out").put("result")
            with mq.database.lock() as connection:
                assert connection.fetch("SHOW synchronous_commit") == [("on",)]


def test_full_durability_waits_for_the_disk_even_if_the_server_does_not_by_default(postgres: Postgres, url: str) -> None:
    option = "&options=-c%20synchronous_commit%3Doff"
    with holtmq.open(url + option) as mq, mq.database.lock() as connection:
        assert connection.fetch("SHOW synchronous_commit") == [("on",)]
    with holtmq.open(url + option, durability="normal") as mq, mq.database.lock() as connection:
        assert connection.fetch("SHOW synchronous_commit") == [("off",)]


# A server that does not answer


def test_connecting_to_a_server_that_stops_answering_is_an_error(postgres: Postgres, url: str) -> None:
    with tcp_proxy(postgres.port) as proxy:
        proxy.swallow_from(b"enable_seqscan")
        with pytest.raises(StoreLostError, match="cannot be reached"):
            holtmq.open(url.replace(f":{postgres.port}/", f":{proxy.port}/"), timeout_s=1)


# What a server refuses


def test_a_wrong_password_a_missing_user_and_a_missing_database_are_refused_without_showing_the_password() -> None:
    with running_postgres() as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE worker LOGIN PASSWORD 's3cret/word'")
        (server.data / "pg_hba.conf").write_text("host all holtmq all trust\nhost all all all scram-sha-256\n")
        server.stop()
        server.start()
        refused = {
            f"postgresql://worker:wr0ng%2Fword@127.0.0.1:{server.port}/postgres": "password authentication failed",
            f"postgresql://nobody:wr0ng%2Fword@127.0.0.1:{server.port}/postgres": "password authentication failed",
            f"postgresql://holtmq:wr0ng%2Fword@127.0.0.1:{server.port}/nothing": 'database "nothing" does not exist',
        }
        for url, reason in refused.items():
            with pytest.raises(StoreRefusedError, match=reason) as caught:
                holtmq.open(url)
            assert "wr0ng" not in f"{caught.value!r} {caught.value.__cause__!r}"
        with pytest.raises(StoreRefusedError, match=r"permission denied.*needs CREATE"):
            holtmq.open(f"postgresql://worker:s3cret%2Fword@127.0.0.1:{server.port}/postgres")
        with server.connect() as connection:
            connection.execute("CREATE SCHEMA AUTHORIZATION worker")
        with holtmq.open(f"postgresql://worker:s3cret%2Fword@127.0.0.1:{server.port}/postgres?schema=worker") as mq:
            mq.queue("q").put("m")
            assert "s3cret" not in f"{mq!r} {mq.path} {mq.queue('q')!r} {mq.database.url!r}"


def test_a_server_without_a_free_connection_is_reported_as_one_that_cannot_be_reached_for_now() -> None:
    settings = {**QUICK, "max_connections": "5", "superuser_reserved_connections": "2", "max_wal_senders": "0"}
    with running_postgres(settings) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE worker LOGIN CONNECTION LIMIT 1")
            connection.execute("CREATE ROLE other LOGIN")
            for name, owner in (("shop", "worker"), ("other", "other")):
                connection.execute(f"CREATE SCHEMA {name} AUTHORIZATION {owner}")
        url = server.url("shop").replace("holtmq@", "worker@")
        with holtmq.open(url) as mq:
            queue = mq.queue("q")
            with pytest.raises(StoreLostError, match=r"has no connection left .*too many connections for role"):
                holtmq.open(url)
            with server.connect() as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
            taken = eventually(lambda: connected(url), "the session to end")
            assert taken is not None
            late = threading.Thread(target=queue.put, args=("m",))
            late.start()
            taken.close()
            late.join()
            assert queue.size() == 1
            others = server.url("other").replace("holtmq@", "other@")
            with ExitStack() as stack:
                for _ in range(2):  # of three connections for all roles but superusers, one is taken
                    stack.enter_context(holtmq.open(others))
                with pytest.raises(StoreLostError, match=r"has no connection left .*connection slots"):
                    holtmq.open(others)


def connected(url: str) -> psycopg.Connection[Any] | None:
    try:
        return psycopg.connect(DatabaseUrl.parse(url).conninfo)
    except psycopg.OperationalError:
        return None


def test_a_server_that_does_not_answer_is_reported_at_once() -> None:
    with pytest.raises(StoreLostError, match="cannot be reached"):
        holtmq.open("postgresql://nobody:s3cret@127.0.0.1:1/nothing")


@pytest.mark.parametrize("secret", ["p/ss", "p#ss", "p?ss", "p@ss", "p%zzss", "p%00ss", "p ss"])
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InvalidValueError, match="percent-encoding") as caught:
        holtmq.open(f"postgresql://u:{secret}@host/db")
    assert "ss" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://[::1/db", "has a host that is not a name"),
        ("postgresql://u:s3cret@[::1/db", "has a host that is not a name"),
        ("postgresql://u:s3cret/db", "has a host that is not a name"),
        ("postgresql://u:s3cret@h/db?passwrod=s3cret", 'invalid URI query parameter: "passwrod"'),
        ("postgresql://u:s3cret@h/db?sslmode", "it is malformed"),
        ("postgresql+psycopg://u:s3cret@h/db", "begins with postgresql\\+psycopg://"),
        ("mysql://u:s3cret@h/db", "begins with mysql://"),
        ("postgresql:/u:s3cret@h/db", "begins with postgresql:/"),
        ("postgresql:u:s3cret@h", "begins with postgresql:"),
        ("u:s3cret://h", "begins with u:"),
        ("/u:s3cret://h", "with :// in it"),
        (Path("postgresql://u:s3cret@h/db"), "a Path that begins with postgresql:/"),
        (Path("mysql://u:s3cret@h/db"), "a Path that begins with mysql:/"),
    ],
)
def test_a_url_that_is_not_one_of_postgresql_is_never_a_file_and_shows_no_password(
    url: str | Path, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (holtmq.open, holtmq.Topology.load, lambda url: open_journal(url, "full", "amqp://here")):
        with pytest.raises(InvalidValueError, match=reason) as caught:
            use(url)
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert list(tmp_path.iterdir()) == []


def test_the_scheme_of_a_url_may_have_capitals_and_its_password_a_bracket(url: str) -> None:
    with holtmq.open(url.replace("postgresql://holtmq@", "POSTGRESQL://holtmq:p[ss@")) as mq:
        assert mq.path == url


@pytest.mark.parametrize(
    ("url", "conninfo", "shown"),
    [
        ("postgresql:///shop", "postgresql:///shop", "postgresql:///shop"),
        (
            "postgres:///shop?host=/run/pg&schema=a",
            "postgresql:///shop?host=/run/pg",
            "postgresql:///shop?host=/run/pg&schema=a",
        ),
        (
            "postgresql://u:p@a,b:5433/shop?password=x",
            "postgresql://u:p@a,b:5433/shop?password=x",
            "postgresql://u@a,b:5433/shop",
        ),
        (
            "postgresql://h/d?options=-c%20a%3Db+c",
            "postgresql://h/d?options=-c%20a%3Db+c",
            "postgresql://h/d?options=-c%20a%3Db+c",
        ),
    ],
)
def test_what_libpq_gets_and_what_people_see(url: str, conninfo: str, shown: str) -> None:
    parsed = DatabaseUrl.parse(url)
    assert (parsed.conninfo, parsed.shown) == (conninfo, shown)
    assert "p@" not in repr(parsed)


def test_a_server_that_is_too_old_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert postgres_database.OLDEST_VERSION == 13
    monkeypatch.setattr(postgres_database, "OLDEST_VERSION", 99)
    with pytest.raises(StoreError, match=r"has PostgreSQL \d\d; expected version 99 or later"):
        holtmq.open(url)


def test_a_schema_of_another_program_is_refused(postgres: Postgres) -> None:
    for columns in ("schema_version integer, other integer", "x integer"):
        url = postgres.url()
        with postgres.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema_of(url)}")
            connection.execute(f"CREATE TABLE {schema_of(url)}.orders (x integer)")
        with pytest.raises(NotAStoreError, match="of another program"):
            holtmq.open(url)
        with postgres.connect() as connection:
            connection.execute(f"CREATE TABLE {schema_of(url)}.state ({columns})")
        with pytest.raises(NotAStoreError, match="of another program"):
            holtmq.open(url)


def test_a_schema_of_a_newer_version_is_refused(postgres: Postgres, url: str) -> None:
    holtmq.open(url).close()
    with postgres.connect() as connection:
        connection.execute(f"UPDATE {schema_of(url)}.state SET schema_version = 99")
    with pytest.raises(StoreVersionError, match="schema version 99"):
        holtmq.open(url)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary server with a schema `shop`, and its read-only replica."""
    with running_postgres({"wal_level": "replica", "max_wal_senders": "4", "fsync": "off"}) as primary:
        holtmq.open(primary.url("shop")).close()
        with postgres_folder() as folder, reserve_port() as reserved:
            replica = Postgres(folder, port_of(reserved), {"hot_standby": "on", "fsync": "off"})
            replica.follow(primary, "replica")
            replica.start()
            try:
                yield primary, replica
            finally:
                replica.stop()


def test_a_read_only_replica_is_refused(servers: tuple[Postgres, Postgres]) -> None:
    _, replica = servers
    with pytest.raises(StoreReadOnlyError, match="read-only replica; expected the primary server"):
        holtmq.open(replica.url("shop"))


def test_the_primary_server_is_found_wherever_the_hosts_are_named(servers: tuple[Postgres, Postgres]) -> None:
    primary, replica = servers
    hosts, ports = "127.0.0.1,127.0.0.1", f"{replica.port},{primary.port}"
    for url in (
        f"postgresql://holtmq@127.0.0.1:{replica.port},127.0.0.1:{primary.port}/postgres?schema=shop",
        f"postgresql:///postgres?schema=shop&user=holtmq&host={hosts}&port={ports}",
        f"postgresql:///postgres?schema=shop&user=holtmq&host={hosts}&port={ports}&target_session_attrs=primary",
    ):
        with holtmq.open(url) as mq:
            mq.queue("q").put("m")


def test_hosts_that_are_all_replicas_are_told_from_hosts_that_cannot_be_reached(servers: tuple[Postgres, Postgres]) -> None:
    _, replica = servers
    url = f"postgresql://holtmq@127.0.0.1:{replica.port},127.0.0.1:{{}}/postgres?schema=shop"
    with pytest.raises(StoreReadOnlyError, match="all hosts are read-only replicas"):
        holtmq.open(url.format(replica.port))
    with pytest.raises(StoreLostError, match="cannot be reached"):
        holtmq.open(url.format(1))


def test_the_options_of_the_url_and_of_the_environment_come_before_ours(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGAPPNAME", "from the environment")
    given = {"connect_timeout": "7", "keepalives_idle": "3", "tcp_user_timeout": "5000"}
    options = "&".join(f"{name}={value}" for name, value in given.items())
    with closing(connect(DatabaseUrl.parse(f"{url}&{options}"), 30)) as connection:
        found = connection.info.get_parameters()
    assert {name: found[name] for name in given} == given
    assert (found["application_name"], found["keepalives_interval"]) == ("from the environment", "5")


def test_a_timeout_of_zero_does_not_wait(url: str) -> None:
    with holtmq.open(url) as mq, holtmq.open(url, timeout_s=0) as other:
        with other.database.lock() as connection:
            assert connection.fetch("SHOW lock_timeout") == [("1ms",)]
        with mq.transaction():
            mq.declare_queue("q")
            with pytest.raises(StoreBusyError):
                other.declare_queue("q")


@pytest.mark.parametrize("name", ["Shop", "pg_shop", "1", "a-b", "a;b", "x" * 52, ""])
def test_a_schema_has_a_plain_name(postgres: Postgres, name: str) -> None:
    with pytest.raises(
        InvalidValueError, match="at most 51 lower-case letters, digits and underscores, and not begin with a digit"
    ):
        holtmq.open(postgres.url().rpartition("=")[0] + f"={name}")


@pytest.mark.parametrize("name", ["user", "order", "group", "table", "default", "select", "x" * 51])
def test_a_schema_may_have_any_plain_name_even_a_reserved_word(postgres: Postgres, name: str) -> None:
    if name == "default":
        look(postgres.url("public"), 'CREATE SCHEMA "default"')
    with holtmq.open(postgres.url(name)) as mq:
        mq.queue("q").put("m")
        assert mq.database.size() > 0
        mq.vacuum()
        message = mq.queue("q").pop()
        assert message is not None
        message.ack()
    tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'deliveries' AND schemaname = ?"
    assert [look_for_one(postgres.url(name), tables, (schema,)) for schema in (name, "public")] == [1, 0]


def test_a_second_schema_in_the_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="has schema= 2 times"):
        holtmq.open(f"{url}&schema=other")


# What is put


def test_nul_characters_are_kept(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.declare_queue("q\0")
        mq.declare_exchange("x\0", "topic")
        mq.bind("q\0", "x\0", "k\0.*")
        mq.publish("nul\0 in a body", "k\0.a", exchange="x\0", headers={"nul\0": "\0"})
        message = queue.pop("k\0.#")
        assert message is not None
        assert (message.routing_key, message.exchange) == ("k\0.a", "x\0")
        assert (message.text, dict(message.headers)) == ("nul\0 in a body", {"nul\0": "\0"})
        assert [each.name for each in mq.topology().queues] == ["q\0"]


def test_characters_that_utf_8_cannot_encode_are_refused_before_anything_changes(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        for call in (
            lambda: queue.put("m", "k\ud800"),
            lambda: queue.put_many([("m", "k"), ("m", "k\ud800")]),
            lambda: mq.queue("q\ud800"),
            lambda: mq.declare_exchange("x\ud800"),
            lambda: mq.publish("m", "k\ud800"),
        ):
            with pytest.raises(InvalidValueError, match="UTF-8 can encode"):
                call()
        assert queue.pop() is None
        assert [each.name for each in mq.topology().queues] == ["q"]


def test_large_bodies_and_keys_and_many_messages(url: str) -> None:
    with holtmq.open(url) as mq:
        queue = mq.queue("q")
        body = os.urandom(64 * 1024 * 1024)
        queue.put(body, "k" * 255)
        message = queue.pop("k" * 255)
        assert message is not None
        assert message.body == body
        message.ack()
        ids = queue.put_many([("m", f"k.{n % 100}") for n in range(20_000)])
        assert list(ids) == sorted(ids)
        assert queue.size() == 20_000
        assert len(queue.pop_many(20_000, "k.#")) == 20_000


def test_a_closed_store_says_so(url: str) -> None:
    mq = holtmq.open(url)
    queue = mq.queue("q")
    mq.close()
    with pytest.raises(StoreClosedError):
        queue.put("m")
    with pytest.raises(StoreClosedError):
        queue.pop(wait_s=1)
