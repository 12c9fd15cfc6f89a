"""Commands that take a path of a HoltMQ file take the URL of a PostgreSQL database as well."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holtmq
from holtmq.cli.main import main
from tests.peers.peer import POSTGRES
from tests.peers.postgres import Postgres, running_postgres
from tests.places import database_at

pytestmark = pytest.mark.peer(POSTGRES)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_queue_commands(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "declare", url, "q", "-a", "x-max-priority=3"]) == 0
    put = printed(capsys, "queue", "put", url, "q", "hello", "--key", "a.b", "--priority", "2")
    assert printed(capsys, "queue", "peek", url, "q", "--pattern", "a.#")[0]["id"] == put["id"]
    assert printed(capsys, "queue", "list", url)[0]["ready"] == 1
    assert printed(capsys, "queue", "pop", url, "q")[0]["body"] == "hello"
    printed(capsys, "queue", "put", url, "q", "again")
    assert main(["queue", "purge", url, "q", "--yes"]) == 0
    assert printed(capsys, "queue", "list", url, "q") == []
    assert main(["queue", "declare-super-stream", url, "s", "--partitions", "2"]) == 0
    assert printed(capsys, "queue", "put", url, "s-0", "event") == {"offset": 0}
    assert printed(capsys, "queue", "get", url, "s-0", "--offset", "first")[0]["body"] == "event"


def test_explain_and_topology(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with holtmq.open(url) as mq:
        mq.declare_exchange("x", "topic")
        mq.declare_queue("q")
        mq.bind("q", "x", "k.#")
        assert holtmq.Topology.load(url) == mq.topology()
    assert printed(capsys, "explain", "x", "k.l", "--data", url)["queues"] == ["q"]


def test_a_schema_that_has_no_installation_is_not_created_by_a_look(
    postgres: Postgres, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["queue", "list", url], ["explain", "x", "k", "--data", url], ["vacuum", url], ["copy", url, "x.db"]):
        assert main(command) == 1
        assert "has no HoltMQ installation in schema" in capsys.readouterr().err
    with postgres.connect() as connection:
        schema = url.rpartition("=")[2]
        assert connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,)


def test_commands_other_than_serve_do_not_advise_to_start_a_standby(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "copy.db")
    with closing(database_at(url, owner="amqp://here")):
        for command in (["queue", "list", url], ["explain", "x", "k", "--data", url], ["vacuum", url], ["copy", url, target]):
            assert main(command) == 1
            said = capsys.readouterr().err
            assert "is in use by the broker at amqp://here; connect to that broker, or stop it" in said
            assert "standby" not in said


def test_copy_tells_what_was_copied(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holtmq.open(tmp_path / "shop.db") as mq:
        mq.queue("q").put_many([("m", "k")] * 3)
        mq.queue("q").pop()
        mq.stream("events").append_many([("e", "k")] * 5)
    assert main(["copy", str(tmp_path / "shop.db"), url]) == 0
    assert "8 messages copied" in capsys.readouterr().out
    assert printed(capsys, "copy", url, str(tmp_path / "back.db")) == {
        "messages": 8,
        "queues": [{"vhost": "/", "queue": "q", "ready": 2, "locked": 1, "done": 0, "failed": 0, "dead": 0, "damaged": 0}],
        "streams": [{"vhost": "/", "stream": "events", "messages": 5}],
    }
    assert main(["copy", url, str(tmp_path / "back.db")]) == 0
    assert "8 messages were already copied" in " ".join(capsys.readouterr().out.split())
    with holtmq.open(tmp_path / "back.db") as mq:
        mq.queue("q").put("another")
    assert main(["copy", url, str(tmp_path / "back.db")]) == 1
    assert "has content of its own" in capsys.readouterr().err


def test_migrate_writes_to_a_database(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.db"
    with sqlite3.connect(old) as connection:
        connection.execute("CREATE TABLE inbox (message_id TEXT, data TEXT, status INTEGER, in_time INTEGER, topic TEXT)")
        connection.execute("INSERT INTO inbox VALUES ('1', 'hello', 0, 1700000000000, 'a.b')")
    assert printed(capsys, "migrate", str(old), "--output", url)["messages"] == 1
    with holtmq.open(url) as mq:
        message = mq.queue("inbox").pop("a.*")
        assert message is not None
        assert message.text == "hello"


def test_vacuum(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with holtmq.open(url) as mq:
        mq.queue("q").put_many([("m", f"k.{n}") for n in range(1000)])
        mq.queue("q").purge()
    found = printed(capsys, "vacuum", url)
    assert found["bytes_after"] > 0
    with holtmq.open(url) as mq, mq.database.lock() as connection:
        assert connection.execute("SELECT count(*) FROM routing_keys").fetchone() == (0,)


def test_a_password_comes_from_the_environment_or_from_a_file_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_postgres() as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE worker LOGIN PASSWORD 's3cret'")
            connection.execute("CREATE SCHEMA shop AUTHORIZATION worker")
        (server.data / "pg_hba.conf").write_text("host all worker all scram-sha-256\n")
        server.stop()
        server.start()
        url = f"postgresql://worker@127.0.0.1:{server.port}/postgres?schema=shop"
        assert main(["queue", "put", url, "q", "m"]) == 1
        assert "no password supplied" in capsys.readouterr().err
        monkeypatch.setenv("PGPASSWORD", "s3cret")
        assert main(["queue", "put", url, "q", "m"]) == 0
        monkeypatch.delenv("PGPASSWORD")
        passwords = tmp_path / "pgpass"
        passwords.write_text("*:*:*:worker:s3cret\n")
        passwords.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        assert main(["queue", "put", url, "q", "m"]) == 0
        monkeypatch.delenv("PGPASSFILE")
        with_password = url.replace("worker@", "worker:s3cret@")
        assert main(["queue", "list", with_password, "none"]) == 1
        assert main(["queue", "purge", with_password, "q", "--yes"]) == 0
        assert main(["vacuum", with_password]) == 0
        assert main(["copy", with_password, str(tmp_path / "copy.db")]) == 0
        assert "s3cret" not in "".join(capsys.readouterr())
