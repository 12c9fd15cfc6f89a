"""The broker on PostgreSQL: who owns the schema, what a standby does, and what a lost connection means for a batch."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from holtmq.cli.main import main
from holtmq.config import Config
from holtmq.database_url import DatabaseUrl
from holtmq.errors import StoreError, StoreFencedError, StoreLostError, StoreRefusedError, StoreUnknownError
from holtmq.server.standby import Standby
from holtmq.steps import complete
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.topology import Queue
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import PATIENCE_S, eventually
from tests.peers.peer import POSTGRES
from tests.places import database_at, journal_on, look, look_for_one
from tests.ports import port_of, reserve_port
from tests.server.process import BrokerProcess, broker_process
from tests.store.test_batch_steps import add, commit, write

if TYPE_CHECKING:
    from holtmq.embedded import EmbeddedBroker
    from tests.peers.postgres import Postgres

pytestmark = pytest.mark.peer(POSTGRES)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url()


def test_a_second_broker_is_refused_with_the_address_of_the_first(url: str) -> None:
    with (
        broker_process(url) as broker,
        pytest.raises(RuntimeError, match=f"in use by the broker at amqp://127.0.0.1:{broker.port}; .*started with --standby"),
    ):
        BrokerProcess(url)


def test_the_standby_takes_over_from_a_frozen_broker_which_becomes_a_standby(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.server.pair import pair_of_brokers

    with pair_of_brokers(postgres, tmp_path) as pair:
        address = f"http://127.0.0.1:{pair.other.http_port}"
        assert main(["status", "--http-url", address, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["role"] == "standby"
        assert re.fullmatch(rf"this broker is a standby: \S+ is owned by amqp://127.0.0.1:{pair.port}", shown["reason"])
        assert main(["status", "--http-url", address]) == 0
        assert "".join(capsys.readouterr().out.split()) == "".join(shown["reason"].split())
        assert health(pair.active.http_port) == (200, "ok")
        status, reason = health(pair.other.http_port)
        assert status == 503
        assert f"amqp://127.0.0.1:{pair.port}" in reason
        with Amqp(pair.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            channel.confirm()
            channel.put("q", b"confirmed", delivery_mode=2)
            channel.next()
            pair.active.freeze()
            frozen = pair.take_over()
            with Amqp(pair.port) as other:
                assert other.channel().drain("q") == [b"confirmed"]
            channel.publish("", "q", b"too late", delivery_mode=2)
            frozen.thaw()
            with pytest.raises(ClosedError, match="320"):
                channel.next()
        eventually(lambda: frozen.is_standby, "the former broker to be a standby")
        with Amqp(pair.port) as other:
            assert other.channel().drain("q") == []


def health(port: int) -> tuple[int, str]:
    """Return the status of the health check that a load balancer asks for, and what it says."""
    try:
        with urlopen(as_guest(port, "health/checks/active")) as response:
            return response.status, json.load(response)["status"]
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def as_guest(port: int, path: str) -> Request:
    return Request(f"http://127.0.0.1:{port}/api/{path}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})


def publish(channel: Channel, numbers: range) -> None:
    for number in numbers:
        channel.publish("", "q", b"%d" % number, delivery_mode=2)


def wait_for_confirms(channel: Channel, tag: int) -> None:
    """Wait until the message with this tag, and all before it, are confirmed."""
    confirmed = 0
    while confirmed < tag:
        event = channel.next()
        assert isinstance(event.method, wire.BasicAck)
        confirmed = event.method.delivery_tag


@contextmanager
def journal_through(proxy_port: int, url: str, port: int) -> Iterator[BatchJournal]:
    with closing(journal_on(database_at(url.replace(f":{port}/", f":{proxy_port}/"), owner="a test"))) as journal:
        journal.recover()
        yield journal


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_batch_whose_commit_got_no_answer_is_written_once(postgres: Postgres, url: str, is_answered: bool) -> None:  # noqa: FBT001
    from tests.peers.tcp_proxy import tcp_proxy

    with tcp_proxy(postgres.port) as proxy, journal_through(proxy.port, url, postgres.port) as journal:
        add(journal, journal.add_queue(Queue("q")), range(1, 11))
        complete(write(journal))
        proxy.cut_at(b"COMMIT", is_answered=is_answered)
        with pytest.raises(StoreUnknownError):
            journal.commit()
        assert journal.is_in_doubt
        if is_answered:
            assert journal.commit() == 1
        else:
            with pytest.raises(StoreLostError):
                journal.commit()
            assert journal.begin()
            journal.gather()
            complete(journal.write())
            journal.commit()
        assert not journal.is_in_doubt
        assert look_for_one(url, "SELECT sum(number) FROM log_slices") == 10


def test_a_broker_that_lost_its_connection_writes_nothing_if_others_used_the_schema(postgres: Postgres, url: str) -> None:
    import holtmq
    from tests.peers.tcp_proxy import tcp_proxy

    with tcp_proxy(postgres.port) as proxy, journal_through(proxy.port, url, postgres.port) as journal:
        queue_id = journal.add_queue(Queue("q"))
        commit(journal)
        proxy.cut(for_good=True)
        library = eventually(lambda: opened(url), "the schema to be free")
        assert library is not None
        library.close()
        proxy.heal()
        add(journal, queue_id, range(1, 11))
        with pytest.raises(StoreFencedError):
            commit(journal)
        with holtmq.open(url) as mq:
            assert mq.queue("q").size() == 0


def opened(url: str) -> EmbeddedBroker | None:
    import holtmq
    from holtmq.errors import StoreOwnedError

    try:
        return holtmq.open(url)
    except StoreOwnedError:
        return None


def test_a_chunk_that_another_broker_removed_is_no_internal_error(url: str) -> None:
    with closing(journal_on(database_at(url, owner="a test"))) as journal:
        journal.recover()
        queue_id = journal.add_queue(Queue("q"))
        message, *_ = add(journal, queue_id, range(1, 11))
        commit(journal)
        look(url, "DELETE FROM log_chunks")
        with pytest.raises(StoreLostError, match="removed by another process"):
            journal.read_one(message)


def test_a_lost_reader_is_replaced(postgres: Postgres, url: str) -> None:
    from tests.peers.tcp_proxy import tcp_proxy

    with tcp_proxy(postgres.port) as proxy, journal_through(proxy.port, url, postgres.port) as journal:
        queue_id = journal.add_queue(Queue("q"))
        add(journal, queue_id, range(1, 11))
        commit(journal)
        assert len(journal.read(queue_id, 0, 0, 100, 10**6).messages) == 10
        proxy.cut()
        with pytest.raises(StoreLostError):
            journal.read(queue_id, 0, 0, 100, 10**6)
        assert len(journal.read(queue_id, 0, 0, 100, 10**6).messages) == 10


def test_an_owner_whose_old_session_the_server_still_has_goes_on(postgres: Postgres, url: str) -> None:
    """The network forgot the connection, and only one side noticed."""
    with journal_through(postgres.port, url, postgres.port) as journal:
        queue_id = journal.add_queue(Queue("q"))
        commit(journal)
        database = journal._database  # noqa: SLF001
        session = database._connection._raw  # type: ignore[attr-defined]  # noqa: SLF001
        database._connection._raw = other = postgres.connect()  # type: ignore[attr-defined]  # noqa: SLF001
        other.close()
        add(journal, queue_id, range(1, 11))
        commit(journal)
        session.close()
        assert look_for_one(url, "SELECT sum(number) FROM log_slices") == 10


def test_a_silent_owner_loses_its_session_and_one_with_a_pulse_does_not(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holtmq.store.postgres import ownership_watch as ownership

    monkeypatch.setattr(ownership, "SILENCE_S", 0.3)
    with closing(journal_on(database_at(url, owner="amqp://here"))) as journal, closing(ownership.OwnershipWatch(url)) as watch:
        journal.recover()
        add(journal, journal.add_queue(Queue("q")), range(1, 11))
        complete(write(journal))
        written_at = look_for_one(url, "SELECT clock_timestamp()")

        def is_late() -> bool:
            assert journal.pulse()
            assert watch.look() == "amqp://here"
            return bool((look_for_one(url, "SELECT clock_timestamp()") - written_at).total_seconds() > 0.6)

        eventually(is_late, "a transaction to be longer than the silence")
        journal.commit()
        eventually(lambda: watch.look() is None, "the owner to lose its session")
        assert not journal.pulse()


def test_a_thread_that_waits_for_the_database_is_woken(postgres: Postgres, url: str) -> None:
    from tests.peers.tcp_proxy import tcp_proxy

    with tcp_proxy(postgres.port) as proxy, journal_through(proxy.port, url, postgres.port) as journal:
        add(journal, journal.add_queue(Queue("q")), range(1, 11))
        complete(write(journal))
        outcomes: list[StoreError] = []

        def wait() -> None:
            try:
                journal.commit()
            except StoreError as error:
                outcomes.append(error)

        proxy.swallow()
        thread = threading.Thread(target=wait)
        thread.start()
        while thread.is_alive():
            journal.cut()
            thread.join(0.01)
        assert isinstance(outcomes[0], StoreUnknownError)
        proxy.heal()


def test_a_thread_that_connects_again_is_woken(postgres: Postgres, url: str) -> None:
    from holtmq.store.postgres.postgres_database import PostgresDatabase
    from tests.peers.tcp_proxy import tcp_proxy

    with (
        tcp_proxy(postgres.port) as proxy,
        closing(PostgresDatabase(url.replace(f":{postgres.port}/", f":{proxy.port}/"), timeout_s=0.1)) as database,
    ):
        outcomes: list[StoreError] = []

        def tidy() -> None:
            try:
                database.tidy()
            except StoreError as error:
                outcomes.append(error)

        proxy.cut()
        proxy.swallow_from(b"pg_is_in_recovery")
        thread = threading.Thread(target=tidy)
        thread.start()
        assert proxy.swallowed.wait(PATIENCE_S)
        while thread.is_alive():
            database.cut()
            thread.join(0.01)
        assert isinstance(outcomes[0], StoreLostError)


def test_a_broker_stops_although_the_database_does_not_answer(postgres: Postgres, url: str) -> None:
    from tests.peers.tcp_proxy import tcp_proxy

    with tcp_proxy(postgres.port) as proxy:
        through = url.replace(f":{postgres.port}/", f":{proxy.port}/")
        with broker_process(through) as broker, Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            proxy.swallow_from(b"COMMIT")
            channel.publish("", "q", b"m", delivery_mode=2)
            assert proxy.swallowed.wait(PATIENCE_S)
            code, log = broker.stop_while(amqp)
            assert code == 1
            assert "stopped without writing 1 messages" in log


def test_nothing_confirmed_is_lost_when_a_replica_is_promoted(tmp_path: Path) -> None:
    from tests.peers.postgres import QUICK, Postgres, postgres_folder, running_postgres

    settings = {**QUICK, "synchronous_standby_names": "replica", "synchronous_commit": "on"}
    with running_postgres(settings) as primary, postgres_folder() as folder, reserve_port() as reserved:
        replica = Postgres(folder, port_of(reserved), {**settings, "synchronous_standby_names": ""})
        replica.follow(primary, "replica")
        replica.start()
        url = f"postgresql://holtmq@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres?schema=shop"
        try:
            with broker_process(url) as broker, Amqp(broker.port) as amqp:
                channel = amqp.channel()
                channel.declare("q", durable=True)
                channel.confirm()
                publish(channel, range(100))
                wait_for_confirms(channel, 100)
                publish(channel, range(100, 200))
                primary.kill()
                replica.promote()
                publish(channel, range(200, 300))
                wait_for_confirms(channel, 300)
                assert channel.drain("q") == [b"%d" % number for number in range(300)]
        finally:
            replica.stop("immediate")


def start(url: str, *options: str) -> str:
    """Start a broker that cannot start, and return what it says."""
    command = [sys.executable, "-m", "holtmq", "serve", "--data", url, "--amqp-port", "0", "--http-port", "-1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_database_that_cannot_be_used_is_one_clear_error_without_the_password(postgres: Postgres, url: str) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE powerless LOGIN PASSWORD 's3cret'")
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with_password = url.replace("holtmq@", "powerless:s3cret@")
    errors = {
        "the user needs CREATE": start(with_password),
        "expected UTF8": start(url.replace("/postgres?", "/latin?")),
        "cannot be reached": start(with_password.replace(f":{postgres.port}/", ":1/")),
        'database "none" does not exist': start(url.replace("/postgres?", "/none?")),
    }
    database_at(url).close()
    look(url, "UPDATE state SET schema_version = 99")
    errors["written by a newer HoltMQ"] = start(url)
    for text, error in errors.items():
        assert text in error
        assert "s3cret" not in error


def test_no_password_is_shown(postgres: Postgres, url: str) -> None:
    with_password = url.replace("holtmq@", "holtmq:s3cret@") + "&password=s3cret"
    with broker_process(with_password, "--http-port", "0", "--log-level", "debug") as broker:
        with urlopen(as_guest(broker.http_port, "overview")) as response:
            assert b"s3cret" not in response.read()
        assert "s3cret" not in broker.ready_line
        code, log = broker.stop()
        assert code == 0
        assert "s3cret" not in log


def test_a_standby_that_is_refused_from_the_beginning_ends_with_a_clear_error(postgres: Postgres, url: str) -> None:
    assert 'role "nobody" does not exist' in start(url.replace("holtmq@", "nobody:s3cret@"), "--standby")
    assert 'database "none" does not exist' in start(url.replace("/postgres?", "/none?"), "--standby")


def test_a_standby_that_is_refused_later_waits(postgres: Postgres, url: str) -> None:
    with role(postgres) as name, closing(journal_on(database_at(url, owner="amqp://here"))) as journal:
        look(url, f"GRANT holtmq TO {name}")
        standby, reasons = Standby(Config(data=url.replace("holtmq@", f"{name}@"), standby=True, http_port=-1)), []

        def on_waiting(reason: str) -> None:
            reasons.append(reason)
            if len(reasons) == 1:
                look(url, f"ALTER ROLE {name} NOLOGIN")
                look(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = ?", (name,))
            elif "is not permitted to log in" in reason:
                look(url, f"ALTER ROLE {name} LOGIN")
                journal.close()

        asyncio.run(standby.wait(on_waiting))
        assert reasons[0].endswith("is owned by amqp://here")
        assert any("is not permitted to log in" in reason for reason in reasons)


def test_a_standby_does_not_wait_for_ever_for_a_database_that_does_not_answer(
    postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.peers.tcp_proxy import tcp_proxy

    monkeypatch.setattr("holtmq.server.standby.ANSWER_S", 0.5)
    with tcp_proxy(postgres.port) as proxy, closing(journal_on(database_at(url, owner="amqp://here"))) as journal:
        through, reasons = url.replace(f":{postgres.port}/", f":{proxy.port}/"), []

        def on_waiting(reason: str) -> None:
            reasons.append(reason)
            if len(reasons) == 1:
                proxy.swallow()
            else:
                proxy.heal()
                journal.close()

        asyncio.run(Standby(Config(data=through, standby=True, http_port=-1)).wait(on_waiting))
        assert reasons[0].endswith("is owned by amqp://here")
        assert "cannot be reached" in reasons[1]


def test_a_standby_stops_although_the_database_does_not_answer(postgres: Postgres, url: str) -> None:
    from tests.peers.tcp_proxy import tcp_proxy

    async def stop_a_standby(url: str) -> None:
        waits = asyncio.create_task(Standby(Config(data=url, standby=True, http_port=-1)).wait(lambda _: proxy.swallow()))
        await asyncio.get_running_loop().run_in_executor(None, proxy.swallowed.wait, PATIENCE_S)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    with tcp_proxy(postgres.port) as proxy, closing(journal_on(database_at(url, owner="amqp://here"))):
        asyncio.run(stop_a_standby(url.replace(f":{postgres.port}/", f":{proxy.port}/")))


@contextmanager
def role(postgres: Postgres) -> Iterator[str]:
    """A role that is no superuser, and that has rights to nothing."""
    name = f"role_{next(_numbers)}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        try:
            yield name
        finally:
            connection.execute(f"DROP OWNED BY {name} CASCADE")
            connection.execute(f"DROP ROLE {name}")


_numbers = count(1)


def test_a_standby_that_cannot_see_the_sessions_of_the_owner_is_refused(
    postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holtmq.store.postgres import ownership_watch as ownership

    schema = DatabaseUrl.parse(url).schema
    with role(postgres) as ours, role(postgres) as theirs:
        look(url, f"CREATE SCHEMA {schema} AUTHORIZATION {theirs}")
        owner = url.replace("holtmq@", f"{theirs}@")
        with (
            closing(journal_on(database_at(owner, owner="amqp://here"))),
            closing(ownership.OwnershipWatch(url.replace("holtmq@", f"{ours}@"))) as watch,
        ):
            look(url, f"GRANT USAGE ON SCHEMA {schema} TO {ours}")
            look(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {ours}")
            expected = (
                f"owned by amqp://here with the role '{theirs}', whose sessions the role '{ours}' of this standby may not"
            )
            with pytest.raises(StoreRefusedError, match=expected):
                watch.look()
            look(url, f"GRANT pg_read_all_stats, pg_signal_backend TO {ours}")
            assert watch.look() == "amqp://here"
            monkeypatch.setattr(ownership, "SILENCE_S", 0.0)
            eventually(lambda: watch.look() is None, "the owner to lose its session")


def test_a_standby_that_cannot_take_over_waits_again(postgres: Postgres, url: str, tmp_path: Path) -> None:
    import holtmq
    from tests.peers.tcp_proxy import TcpProxy
    from tests.server.pair import Contender

    with role(postgres) as name:
        look(url, f"CREATE SCHEMA {DatabaseUrl.parse(url).schema} AUTHORIZATION {name}")
        theirs = url.replace("holtmq@", f"{name}@")
        with holtmq.open(theirs) as mq:
            mq.declare_stream("events")  # which the broker reads through a second connection
        look(url, f"ALTER ROLE {name} CONNECTION LIMIT 1")
        with closing(Contender(theirs, tmp_path / "log", TcpProxy(postgres.port))) as broker:
            eventually(lambda: "is a standby again" in broker.log.read_text(), "the broker to fail to take over")
            assert "has no connection left" in broker.log.read_text()
            look(url, f"ALTER ROLE {name} CONNECTION LIMIT -1")
            eventually(lambda: broker.is_active, "the broker to take over")


@pytest.mark.parametrize("state", ["disk_full", "lock_not_available"])
def test_a_standby_that_finds_a_full_disk_or_a_lock_waits_again(
    postgres: Postgres, url: str, tmp_path: Path, state: str
) -> None:
    import holtmq
    from tests.peers.tcp_proxy import tcp_proxy
    from tests.server.pair import Contender

    holtmq.open(url).close()
    refuse = f"BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END"
    look(url, f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
    look(url, "CREATE TRIGGER refuse BEFORE UPDATE ON state EXECUTE FUNCTION refuse()")
    with tcp_proxy(postgres.port) as proxy, closing(Contender(url, tmp_path / "log", proxy)) as broker:
        eventually(lambda: "is a standby again" in broker.log.read_text(), "the broker to fail to take over")
        assert "not now" in broker.log.read_text()
        look(url, "DROP TRIGGER refuse ON state")
        eventually(lambda: broker.is_active, "the broker to take over")


def test_a_replica_is_refused_and_a_standby_waits_for_its_promotion(tmp_path: Path) -> None:
    from tests.peers.postgres import QUICK, Postgres, postgres_folder, running_postgres
    from tests.peers.tcp_proxy import TcpProxy
    from tests.server.pair import Contender

    with running_postgres() as primary, postgres_folder() as folder, reserve_port() as reserved:
        replica = Postgres(folder, port_of(reserved), QUICK)
        replica.follow(primary, "replica")
        replica.start()
        try:
            url = replica.url()
            assert "read-only replica" in start(url)
            with closing(Contender(url, tmp_path / "log", TcpProxy(replica.port))) as broker:
                eventually(lambda: broker.is_standby, "the broker to be a standby")
                assert "is a read-only replica" in broker.lines[-1]
                replica.promote()
                eventually(lambda: broker.is_active, "the broker to take over")
        finally:
            replica.stop("immediate")
