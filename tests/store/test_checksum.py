"""A stored message that was damaged is reported and stays in the file; consumers get the messages around it."""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

import holtmq
from holtmq.cli.main import main
from holtmq.store.sqlite.database import STEPS, SqliteDatabase
from tests.amqp_client import Amqp
from tests.management.conftest import running_node
from tests.server.process import broker_process

FLIPS = 150


def damage(path: Path, body: bytes) -> None:
    """Flip a bit of a body in the file itself."""
    content = path.read_bytes()
    assert content.count(body) == 1
    path.write_bytes(content.replace(body, bytes([body[0] ^ 1]) + body[1:]))


def damage_chunks(path: Path, body: bytes) -> None:
    """Flip a bit of a body in the log of a running broker."""
    with sqlite3.connect(path) as connection:
        for chunk_id, content in connection.execute("SELECT id, content FROM log_chunks").fetchall():
            flipped = content.replace(body, bytes([body[0] ^ 1]) + body[1:])
            connection.execute("UPDATE log_chunks SET content = ? WHERE id = ?", (flipped, chunk_id))


def fill(path: Path, *bodies: str) -> None:
    with holtmq.open(path) as mq:
        mq.declare_queue("q", dead_letter_queue="dead")
        mq.declare_queue("dead")
        for number, body in enumerate(bodies):
            mq.queue("q").put(body, f"key.{number}", headers={"number": number})


@pytest.mark.parametrize(
    "change",
    [
        "body = CAST('two and a bit' AS BLOB)",
        'headers = \'{"name":"tw0"}\'',
        "headers = CAST(x'ff' AS TEXT)",
        "headers = '{'",
        "headers = NULL",
        "properties = '{}'",
        "exchange = 'other'",
        "key_id = 1",
        "key_id = 100",
        "raw_properties = x'0000'",
        "checksum = checksum + 1",
        "checksum = 'text'",
    ],
)
def test_a_damaged_message_is_skipped_by_pop_and_peek(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    path = tmp_path / "a.db"
    fill(path, "one", "two", "three")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ')') WHERE name = 'messages'")
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE messages SET {change} WHERE CAST(body AS TEXT) = 'two'")
    with holtmq.open(path) as mq:
        queue = mq.queue("q")
        first = queue.pop()
        assert first is not None
        assert first.text == "one"
        following = queue.peek()
        assert following is not None
        assert following.text == "three"
        assert [message.text for message in queue.pop_many(10)] == ["three"]
        assert queue.size("damaged") == 1
        (damaged,) = queue.list_messages("damaged")
        assert queue.get(damaged.id) == damaged
    assert caplog.text.count(f"message {damaged.id} of queue 'q' is damaged") == 1


def test_one_flipped_bit_in_a_body_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    fill(path, "first body", "second body")
    damage(path, b"first body")
    with holtmq.open(path) as mq:
        assert [message.text for message in mq.queue("q").pop_many(10)] == ["second body"]
        assert [message.text for message in mq.queue("q").list_messages("damaged")] == ["girst body"]
    assert "its checksum is" in caplog.text


def test_a_damaged_message_is_not_dead_lettered(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    fill(path, "first body", "second body")
    damage(path, b"first body")
    with holtmq.open(path) as mq, mq.transaction():
        connection, queue = mq.database.connection, mq.queue("q")
        connection.execute("UPDATE messages SET expires_at = 1")
        assert queue.pop() is None
        assert (queue.size("damaged"), mq.queue("dead").size()) == (1, 1)


def test_a_damaged_message_is_removed_by_pruning_and_with_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    fill(path, "first body", "second body")
    damage(path, b"first body")
    with holtmq.open(path) as mq:
        queue = mq.queue("q")
        queue.pop()
        assert queue.prune() == 0
        assert queue.prune(states=["damaged"]) == 1
        assert queue.size("damaged") == 0


def test_messages_of_an_older_version_have_no_checksum_and_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    old = SqliteDatabase(path, steps=STEPS[:1])
    with old.transaction() as connection:
        connection.execute(
            "INSERT INTO queues (vhost, name, durable, auto_delete, exclusive, arguments) VALUES ('/', 'q', 1, 0, 0, '{}')"
        )
        connection.execute("INSERT INTO routing_keys VALUES (1, 'k')")
        connection.execute("INSERT INTO messages VALUES (5, 1, '', 1, 0, 0, NULL, NULL, NULL, NULL, x'6d')")
    old.close()
    with holtmq.open(path) as mq:
        assert [message.body for message in mq.queue("q").pop_many(5)] == [b"m"]


def test_a_flipped_bit_anywhere_in_the_file_changes_no_message_that_is_delivered(tmp_path: Path) -> None:
    """The file may turn out to be damaged beyond use, but whatever is delivered is what was put."""
    whole, path, bodies = tmp_path / "whole.db", tmp_path / "a.db", ["alpha", "beta", "gamma"]
    fill(whole, *bodies)
    content = whole.read_bytes()
    message_page = content.index(b"alpha") // 4096 * 4096
    chance = random.Random(5)
    for _ in range(FLIPS):
        flipped = bytearray(content)
        flipped[message_page + chance.randrange(4096 - 400, 4096)] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        with suppress(holtmq.NotAStoreError), holtmq.open(path, durability="off") as mq:
            for message in mq.queue("q").pop_many(10):
                number = bodies.index(message.text)
                assert (message.exchange, message.routing_key) == ("", f"key.{number}")
                assert message.headers == {"number": number}


def test_the_broker_skips_a_damaged_message_and_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    bodies = [b"body number %d." % number for number in range(5)]
    with broker_process(path) as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q", durable=True)
            amqp.channel(2).put("q", *bodies, delivery_mode=2)
        broker.stop()
    damage(path, bodies[0])
    damage(path, bodies[2])
    sound = [bodies[1], bodies[3], bodies[4]]
    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.consume("q")
        assert [channel.next().body for _ in sound] == sound
        assert channel.count("q") == 0
        assert "holtmq_messages_damaged_total 2" in node.http.get("/metrics")
        assert node.http.get("/api/nodes")[0]["damaged_messages"] == 2
    with running_node(data=str(path)) as node, node.connect() as amqp:
        assert amqp.channel().drain("q") == sound
        assert "holtmq_messages_damaged_total 0" in node.http.get("/metrics")


def test_the_broker_skips_a_message_that_was_damaged_while_a_consumer_had_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    fill(path, "first body", "second body")
    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.consume("q")
        tags = [event.method.delivery_tag for event in channel.deliveries(2)]
        damage_chunks(path, b"first body")
        for tag in tags:
            channel.nack(tag)
        assert channel.next().body == b"second body"
        channel.nack(tags[-1] + 1, requeue=False)
        assert (channel.count("q"), channel.drain("dead")) == (0, [b"second body"])
        assert "holtmq_messages_damaged_total 1" in node.http.get("/metrics")


def test_a_chunk_whose_header_is_damaged_is_set_aside_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with broker_process(path) as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q", durable=True)
            amqp.channel(2).put("q", b"1", b"2", b"3", delivery_mode=2)
        broker.stop()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE log_chunks SET header = CAST(x'00' || substr(header, 2) AS BLOB) WHERE id = 1")
        number = connection.execute("SELECT sum(number) FROM log_slices WHERE chunk_id = 1").fetchone()[0]
    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel(3)
        channel.put("q", b"4", delivery_mode=2)
        channel.consume("q")
        assert [channel.next().body for _ in range(4 - number)] == [b"1", b"2", b"3", b"4"][number:]
        assert channel.count("q") == 0
        assert f"holtmq_messages_damaged_total {number}" in node.http.get("/metrics")
    with holtmq.open(path) as mq:
        assert mq.queue("q").size("damaged") == 1
        assert mq.queue("q").size() == 4 - number


def test_the_broker_skips_a_damaged_message_that_was_delayed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path) as mq:
        for body in ("first body", "second body"):
            mq.queue("q").put(body, delay_s=0.1)
    damage(path, b"first body")
    with broker_process(path) as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.consume("q", no_ack=True)
            assert channel.next().body == b"second body"
        _, log = broker.stop()
    assert "of queue 'q' is damaged: its checksum is" in log


def test_damaged_messages_are_listed_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.db"
    fill(path, "first body", "second body")
    damage(path, b"first body")
    assert main(["queue", "pop", str(path), "q"]) == 0
    assert "second body" in capsys.readouterr().out
    assert main(["queue", "list", str(path), "q", "--state", "damaged"]) == 0
    assert "girst body" in capsys.readouterr().out
