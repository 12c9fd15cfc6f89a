"""Streams in the broker: consumers read what is on disk, each at its own place, and nothing is removed but by retention."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holtmq.accounts import Permission
from holtmq.broker.chores import Chores
from holtmq.broker.definitions_import import import_definitions
from holtmq.broker.memory import MESSAGE_BYTES, UNACKNOWLEDGED_BYTES
from holtmq.broker.stream_queue import StreamQueue
from holtmq.errors import AccessRefusedError, DefinitionsError, NotImplementedByBrokerError, PreconditionFailedError
from holtmq.queueing.stream_rules import StreamRules
from holtmq.steps import complete
from holtmq.table import FieldValue
from holtmq.topology import Policy, Queue, Topology
from holtmq.wire.content import Properties, raw_properties_of
from tests.broker.conftest import START_MS, Bench, Client


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "broker.db")
    yield bench
    bench.journal.close()


@pytest.fixture
def client(bench: Bench) -> Client:
    client = bench.client()
    client.declare("s", durable=True, queue_type="stream")
    client.channel.select_confirms()
    return client


def publish(bench: Bench, client: Client, first: int, number: int, **headers: FieldValue) -> None:
    """Publish messages, and write them to disk."""
    for one in range(first, first + number):
        client.publish("", "s", b"%d" % one, headers=headers or None)
    bench.turn()
    bench.to_disk()


def consume(bench: Bench, offset: FieldValue = "first", prefetch: int = 100, **arguments: FieldValue) -> Client:
    """Return a client that consumes."""
    client = bench.client()
    client.channel.set_prefetch(prefetch, is_global=False)
    given = arguments if offset is None else {"offset": offset, **arguments}
    named = {f"x-stream-{name.replace('_', '-')}": value for name, value in given.items()}
    client.channel.consume("s", "", is_auto_ack=False, is_exclusive=False, arguments=named)
    bench.turn()
    return client


def stream(bench: Bench, name: str = "s") -> StreamQueue:
    queue = bench.broker.vhosts["/"].queue(name)
    assert isinstance(queue, StreamQueue)
    return queue


def numbers(*some: int) -> list[bytes]:
    return [b"%d" % one for one in some]


def test_consumers_read_the_same_messages_each_at_its_own_place(bench: Bench, client: Client) -> None:
    publish(bench, client, 0, 5)
    first, third = consume(bench), consume(bench, 3)
    assert first.bodies == numbers(0, 1, 2, 3, 4)
    assert third.bodies == numbers(3, 4)
    publish(bench, client, 5, 2)
    assert first.bodies[5:] == third.bodies[2:] == numbers(5, 6)
    assert bench.count("s") == 7


def test_a_message_is_delivered_and_confirmed_when_it_is_on_disk(bench: Bench, client: Client) -> None:
    reader = consume(bench)
    client.publish("", "s", b"m")  # transient: a stream stores it all the same
    bench.turn()
    assert (reader.bodies, client.confirms, bench.count("s")) == ([], [], 0)
    bench.start_commit()
    client.publish("", "s", b"n")
    bench.turn()
    assert (reader.bodies, client.confirms) == ([], [])
    bench.end_commit()
    assert (reader.bodies, client.confirms) == ([b"m"], [(1, False)])
    bench.to_disk()
    assert (reader.bodies, client.confirms) == ([b"m", b"n"], [(1, False), (2, False)])


def test_deliveries_carry_their_offset(bench: Bench, client: Client) -> None:
    client.publish("", "s", b"0")
    client.publish("", "s", b"1", content_type="text/plain", headers={"a": [1], "x-stream-offset": "old"}, app_id="me")
    client.publish("", "s", b"2", message_id="2", delivery_mode=2)
    publish(bench, client, 3, 1)
    delivered = [Properties(raw_properties_of(content)) for content in consume(bench).contents]
    assert [each.headers.get("x-stream-offset") for each in delivered] == [0, 1, 2, 3]
    assert delivered[1].to_dict() == {
        "content_type": "text/plain", "headers": {"a": [1], "x-stream-offset": 1}, "app_id": "me",
    }  # fmt: skip
    assert delivered[2].to_dict() == {"headers": {"x-stream-offset": 2}, "delivery_mode": 2, "message_id": "2"}


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", [0, 1, 2, 3]),
        ("last", [3]),
        ("next", []),
        (None, []),
        (0, [0, 1, 2, 3]),
        (2, [2, 3]),
        (100, []),
        (datetime.fromtimestamp(START_MS / 1000 + 2, UTC), [2, 3]),
        (datetime.fromtimestamp(0, UTC), [0, 1, 2, 3]),
        (datetime.fromtimestamp(START_MS / 1000 + 99, UTC), []),
        ("2s", [2, 3]),
        ("1h", [0, 1, 2, 3]),
    ],
)
def test_a_consumer_starts_at_its_offset(bench: Bench, client: Client, offset: FieldValue, expected: list[int]) -> None:
    for number in range(4):
        publish(bench, client, number, 1)
        bench.turn(1000)
    assert consume(bench, offset).bodies == numbers(*expected)


def test_an_offset_that_does_not_exist_yet_is_waited_for(bench: Bench, client: Client) -> None:
    reader = consume(bench, 3)
    publish(bench, client, 0, 5)
    assert reader.bodies == numbers(3, 4)


@pytest.mark.parametrize("offset", ["", "nex", "1", "1w", "-1h", -1, True, 1.5, [1], {"a": 1}])
def test_any_other_offset_is_refused(bench: Bench, client: Client, offset: FieldValue) -> None:
    with pytest.raises(PreconditionFailedError, match="expected first, last, next, an offset, a timestamp, or an interval"):
        consume(bench, offset)
    assert client.channel.consumers == {}


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "recover"])
def test_settling_gives_credit_and_removes_nothing(bench: Bench, client: Client, settle: str) -> None:
    publish(bench, client, 0, 5)
    reader = consume(bench, prefetch=2)
    assert reader.bodies == numbers(0, 1)
    assert reader.channel.in_flight == 2
    match settle:
        case "ack":
            reader.channel.ack(2, multiple=True)
        case "nack":
            reader.channel.reject(2, multiple=True, requeue=True)
        case "reject":
            reader.channel.reject(1, multiple=False, requeue=False)
            reader.channel.reject(2, multiple=False, requeue=False)
        case _:
            reader.channel.recover(requeue=True)
    bench.turn()
    assert reader.bodies == numbers(0, 1, 2, 3)
    assert reader.channel.in_flight == 2
    complete(reader.channel.close())
    assert (reader.channel.in_flight, stream(bench).consumers, bench.count("s")) == (0, [], 5)
    assert all(not is_redelivered for _, _, is_redelivered in reader.deliveries)


def test_a_slow_reader_holds_no_content(bench: Bench, client: Client) -> None:
    publish(bench, client, 0, 5)
    reader = consume(bench)
    assert [message.content for message in reader.channel.messages_of(stream(bench))] == [b""] * 5
    reader.channel.ack(0, multiple=True)
    bench.turn()
    assert bench.broker.memory.queues == 0


def test_a_consumer_needs_a_prefetch(bench: Bench, client: Client) -> None:
    with pytest.raises(PreconditionFailedError, match="consumer prefetch count is not set"):
        client.consume("s")
    client.channel.set_prefetch(10, is_global=False)
    client.channel.set_prefetch(10, is_global=True)
    with pytest.raises(NotImplementedByBrokerError, match="does not support a global prefetch"):
        client.consume("s")
    assert stream(bench).consumers == []


def test_a_consumer_acknowledges(bench: Bench, client: Client) -> None:
    client.channel.set_prefetch(10, is_global=False)
    with pytest.raises(NotImplementedByBrokerError, match="does not support no_ack"):
        client.consume("s", auto_ack=True)
    assert stream(bench).consumers == []


def test_a_stream_needs_the_permissions_of_any_queue(bench: Bench, client: Client) -> None:
    publish(bench, client, 0, 1)
    bench.broker.set_permission(Permission("guest", "/", configure="^$", write="^$", read="^other$"))
    with pytest.raises(AccessRefusedError, match="'s'"):
        consume(bench)
    with pytest.raises(AccessRefusedError, match="'t'"):
        bench.client().declare("t", durable=True, queue_type="stream")
    with pytest.raises(AccessRefusedError):
        bench.client().publish("", "s")
    bench.broker.set_permission(Permission("guest", "/", configure="^$", write="^$", read="^s$"))
    assert consume(bench).bodies == numbers(0)


def test_what_removes_messages_is_not_implemented(client: Client) -> None:
    client.declare("q")
    for remove in (
        lambda: client.get("s"),
        lambda: client.channel.declarer.purge_queue("s"),
        lambda: client.channel.move("s", "q", 1),
    ):
        with pytest.raises(NotImplementedByBrokerError, match="is not supported by stream 's'"):
            remove()


def test_messages_can_be_moved_into_a_stream(bench: Bench, client: Client) -> None:
    client.declare("q", durable=True)
    client.publish("", "q", b"0", delivery_mode=2)
    bench.to_disk()
    assert client.channel.move("q", "s", 10) == 1
    bench.to_disk()
    assert (consume(bench).bodies, bench.count("q")) == ([b"0"], 0)


def test_a_message_for_a_stream_and_a_queue_reaches_both(bench: Bench, client: Client) -> None:
    client.declare("q")
    for name in ("s", "q"):
        client.channel.declarer.bind_queue(name, "amq.fanout", "", {})
    client.publish("amq.fanout", "", b"0")
    assert client.get("q") == b"0"
    bench.turn()
    assert client.confirms == []
    bench.to_disk()
    assert (consume(bench).bodies, client.confirms) == ([b"0"], [(1, False)])


def test_a_stream_takes_dead_letters(bench: Bench, client: Client) -> None:
    client.declare("q", dead_letter_exchange="", dead_letter_routing_key="s")
    client.publish("", "q", b"0")
    client.consume("q")
    bench.turn()
    client.channel.reject(1, multiple=False, requeue=False)
    bench.to_disk()
    assert consume(bench).bodies == [b"0"]


def numbered(number: int, publisher: str = "p") -> dict[str, FieldValue]:
    return {"x-publisher": publisher, "x-publishing-id": number}


def test_a_stream_takes_dead_letters_whatever_their_numbers_and_order(bench: Bench, client: Client) -> None:
    client.declare("q", dead_letter_exchange="", dead_letter_routing_key="s")
    for number in (5, 9):
        client.publish("", "q", b"%d" % number, headers=numbered(number))
    client.consume("q")
    bench.turn()
    for tag in (2, 1):
        client.channel.reject(tag, multiple=False, requeue=False)
    bench.to_disk()
    assert consume(bench).bodies == numbers(9, 5)


def test_a_stream_takes_moved_messages_whatever_their_numbers(bench: Bench, client: Client) -> None:
    client.declare("q", durable=True)
    for number in (9, 5):
        client.publish("", "q", b"%d" % number, headers=numbered(number), delivery_mode=2)
    bench.to_disk()
    assert client.channel.move("q", "s", 10) == 2
    bench.to_disk()
    assert consume(bench).bodies == numbers(9, 5)


def test_a_transaction_appends_its_messages_when_it_commits(bench: Bench, client: Client) -> None:
    other = bench.client()
    other.channel.select_transactions()
    other.publish("", "s", b"0")
    other.channel.roll_back()
    other.publish("", "s", b"1")
    other.channel.commit()
    bench.to_disk()
    assert consume(bench).bodies == [b"1"]


def test_a_transaction_that_outlives_the_stream_leaves_nothing_behind(bench: Bench, client: Client) -> None:
    other = bench.client()
    other.channel.select_transactions()
    other.publish("", "s", b"0")
    publish(bench, client, 0, 1)
    client.channel.declarer.delete_queue("s", if_unused=False, if_empty=False)
    other.channel.commit()
    bench.to_disk()
    with closing(sqlite3.connect(bench.database.path)) as file:
        assert file.execute("SELECT count(*) FROM stream_chunks").fetchone() == (0,)


def test_a_filter_is_exact(bench: Bench, client: Client) -> None:
    for number, value in enumerate(["a", "b", None, "a", "c", 7]):
        publish(bench, client, number, 1, **({} if value is None else {"x-stream-filter-value": value}))
    assert consume(bench, filter="a").bodies == numbers(0, 3)
    assert consume(bench, filter=["a", "c"]).bodies == numbers(0, 3, 4)
    assert consume(bench, filter="a", match_unfiltered=True).bodies == numbers(0, 2, 3, 5)
    assert consume(bench, filter="nobody").bodies == []
    bad: tuple[FieldValue, ...] = (1, [], ["a", 1])
    for wrong in bad:
        with pytest.raises(PreconditionFailedError, match="expected a string or an array of strings"):
            consume(bench, filter=wrong)


def test_each_message_has_its_own_properties_whatever_is_left_out_before_it(bench: Bench, client: Client) -> None:
    for number, (value, kind) in enumerate([("a", "x"), ("b", "y"), ("a", "y"), ("b", "x"), ("a", "x")]):
        client.publish("", "s", b"%d" % number, headers={"x-stream-filter-value": value}, type=kind)
    bench.turn()
    bench.to_disk()
    found = [Properties(raw_properties_of(content)).to_dict() for content in consume(bench, filter="a").contents]
    assert [(each["headers"]["x-stream-offset"], each["type"]) for each in found] == [(0, "x"), (2, "y"), (4, "x")]


def test_a_filter_that_leaves_out_almost_everything_reads_on_after_others_had_their_turn(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.broker.stream_queue.ROUNDS", 2)
    for start in range(0, 1000, 250):
        publish(bench, client, start, 250)
    publish(bench, client, 1000, 1, **{"x-stream-filter-value": "a"})
    reader = consume(bench, filter="a")
    assert reader.bodies == []
    bench.turn()
    bench.turn()
    assert reader.bodies == numbers(1000)


def test_a_numbered_message_is_stored_once(bench: Bench, client: Client, tmp_path: Path) -> None:
    for number in (0, 1, 1, 0, 2):
        client.publish("", "s", b"%d" % number, headers=numbered(number))
    bench.turn()
    bench.to_disk()
    publish(bench, client, 2, 1, **numbered(2))
    assert client.confirms == [(5, True), (6, False)]
    assert consume(bench).bodies == numbers(0, 1, 2)
    publish(bench, client, 3, 1, **numbered(2, "another"))
    publish(bench, client, 4, 1, **{"x-publisher": "p", "x-publishing-id": "text"})  # not a number: not numbered
    for _ in range(2):  # a name that is too long: not numbered
        publish(bench, client, 4, 1, **numbered(7, "p" * 256))
    copy = bench.after_crash(tmp_path / "copy.db")
    again = copy.client()
    publish(copy, again, 9, 1, **numbered(2))
    publish(copy, again, 5, 1, **numbered(3))
    assert consume(copy).bodies == numbers(0, 1, 2, 3, 4, 4, 4, 5)
    copy.journal.close()


def test_a_stream_survives_a_crash_at_its_offsets(bench: Bench, client: Client, tmp_path: Path) -> None:
    publish(bench, client, 0, 3)
    client.publish("", "s", b"not on disk")
    copy = bench.after_crash(tmp_path / "copy.db")
    again = copy.client()
    publish(copy, again, 3, 2)
    reader = consume(copy)
    assert reader.bodies == numbers(0, 1, 2, 3, 4)
    assert [message.id for _, message, _ in reader.deliveries] == [0, 1, 2, 3, 4]
    copy.journal.close()


def test_a_batch_that_failed_is_written_with_the_next_one(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bench, client, 0, 1)
    client.publish("", "s", b"1")
    bench.start_commit()  # and nobody commits it
    client.publish("", "s", b"2")
    bench.broker.sealed()
    bench.journal.gather()
    complete(bench.journal.write())
    bench.end_commit()
    assert consume(bench).bodies == numbers(0, 1, 2)


def test_retention_removes_the_oldest_chunks(bench: Bench) -> None:
    client = bench.client()
    client.declare("s", durable=True, queue_type="stream", max_length_bytes=8_000, stream_max_segment_size_bytes=1000)
    publish(bench, client, 0, 2000)
    extent = stream(bench).extent
    assert 500 < extent.number < 2000
    assert extent.size <= 8_000
    assert extent.next_offset == 2000
    assert int(consume(bench, prefetch=1).bodies[0]) == extent.first_offset
    assert bench.count("s") == extent.number


@pytest.mark.parametrize("is_publishing", [True, False], ids=["while something is published", "while nothing is"])
def test_a_policy_removes_what_is_too_much_at_once(bench: Bench, client: Client, *, is_publishing: bool) -> None:
    publish(bench, client, 0, 300)
    publish(bench, client, 300, 300)
    if is_publishing:
        client.publish("", "s", b"600")
    complete(bench.broker.set_policy(Policy("small", "^s$", {"max-length-bytes": 100})))
    bench.to_disk()
    assert stream(bench).extent.first_offset == (600 if is_publishing else 300)


def test_what_is_too_old_goes_although_nothing_is_published(bench: Bench) -> None:
    client = bench.client()
    client.declare("s", durable=True, queue_type="stream")
    publish(bench, client, 0, 300)
    bench.turn(3000)
    publish(bench, client, 300, 300)
    complete(bench.broker.set_policy(Policy("old", "^s$", {"max-age": "4s"})))
    bench.turn(2000)
    bench.to_disk()
    assert (stream(bench).extent.first_offset, bench.count("s")) == (300, 300)
    bench.turn(60_000)
    assert not bench.journal.has_changes  # the last chunk stays


def test_a_reader_that_is_overtaken_by_retention_continues_with_what_is_left(bench: Bench) -> None:
    client = bench.client()
    client.declare("s", durable=True, queue_type="stream", max_length_bytes=1000, stream_max_segment_size_bytes=300)
    publish(bench, client, 0, 300)
    reader = consume(bench, prefetch=1)
    publish(bench, client, 300, 3000)
    first = stream(bench).extent.first_offset
    reader.channel.ack(1, multiple=False)
    bench.turn()
    assert first > 300
    assert [message.id for _, message, _ in reader.deliveries][1:] == [first]


def test_a_deleted_stream_is_gone_with_what_waits_to_be_written(bench: Bench, client: Client, tmp_path: Path) -> None:
    publish(bench, client, 0, 3)
    reader = consume(bench)
    client.publish("", "s", b"4")
    assert client.channel.declarer.delete_queue("s", if_unused=False, if_empty=True) == 0
    bench.to_disk()
    assert len(reader.cancelled) == 1
    client.declare("s", durable=True, queue_type="stream")
    publish(bench, client, 7, 1)
    again = consume(bench)
    assert [(message.id, message.size) for _, message, _ in again.deliveries] == [(0, 1)]
    with closing(sqlite3.connect(bench.database.path)) as file:
        assert file.execute("SELECT count(*) FROM stream_contents").fetchone() == (1,)


@pytest.mark.parametrize("name", ["message_ttl", "max_length", "max_priority", "overflow", "dead_letter_exchange", "expires"])
def test_an_argument_of_other_queues_is_refused_by_name(bench: Bench, name: str) -> None:
    with pytest.raises(PreconditionFailedError, match=f"invalid arg 'x-{name.replace('_', '-')}'"):
        bench.client().declare("t", durable=True, queue_type="stream", **{name: 1})


@pytest.mark.parametrize(("name", "value"), [("max_age", "7"), ("max_age", 7), ("max_age", "7w"), ("max_length_bytes", -1)])
def test_a_bad_value_is_refused(bench: Bench, name: str, value: FieldValue) -> None:
    with pytest.raises(PreconditionFailedError, match=f"invalid arg 'x-{name.replace('_', '-')}'"):
        bench.client().declare("t", durable=True, queue_type="stream", **{name: value})


def test_a_stream_is_durable_named_and_for_everybody(bench: Bench) -> None:
    declarer = bench.client().channel.declarer
    arguments = {"x-queue-type": "stream"}
    for durable, exclusive, auto_delete, name in (
        (False, False, False, "t"),
        (True, True, False, "t"),
        (True, False, True, "t"),
        (True, False, False, ""),
    ):
        with pytest.raises(PreconditionFailedError):
            declarer.declare_queue(
                name, is_durable=durable, is_exclusive=exclusive, is_auto_delete=auto_delete, arguments=arguments
            )
    assert bench.broker.vhosts["/"].queues == {}


def test_another_maximum_age_is_not_equivalent(bench: Bench) -> None:
    client = bench.client()
    client.declare("t", durable=True, queue_type="stream", max_age="1D")
    with pytest.raises(PreconditionFailedError, match="inequivalent arg 'x-max-age'"):
        client.declare("t", durable=True, queue_type="stream", max_age="2D")


def test_definitions_bring_streams(bench: Bench) -> None:
    events = Queue("events", arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    policy = Policy("small", "^events$", {"max-length-bytes": 1000, "max-age": "1D"})
    for _ in range(2):
        complete(import_definitions(bench.broker, Topology(queues=(events,), policies=(policy,))))
    assert stream(bench, "events").rules == StreamRules(1000, 86_400_000)
    bad: list[dict[str, FieldValue]] = [{"x-max-length": 1}, {"x-max-age": "old"}]
    for wrong in bad:
        with pytest.raises(DefinitionsError, match="invalid arg 'x-max"):
            complete(
                import_definitions(
                    bench.broker, Topology(queues=(Queue("other", arguments={"x-queue-type": "stream", **wrong}),))
                )
            )
    with pytest.raises(DefinitionsError, match="invalid arg 'max-age'"):
        complete(import_definitions(bench.broker, Topology(policies=(Policy("p", "", {"max-age": "old"}),))))


def test_a_read_error_is_waited_out(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(bench, client, 0, 3)
    with monkeypatch.context() as patch:
        patch.setattr(
            "holtmq.store.sql.stream_log.StreamLog.chunk",
            lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk I/O error")),
        )
        with caplog.at_level(logging.ERROR):
            reader = consume(bench)
    assert reader.bodies == []
    assert "cannot read messages of queue 's'" in caplog.text
    bench.turn(1000)
    bench.turn()
    assert reader.bodies == numbers(0, 1, 2)


def test_a_time_that_cannot_be_looked_up_is_looked_up_again(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(bench, client, 0, 3)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(
            "holtmq.store.sql.stream_log.StreamLog.find",
            lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk I/O error")),
        )
        reader = consume(bench, "1h")
    assert reader.bodies == []
    assert "cannot read messages of queue 's'" in caplog.text
    bench.turn(1000)
    bench.turn()
    assert reader.bodies == numbers(0, 1, 2)


def test_damage_is_skipped(bench: Bench, client: Client) -> None:
    for start in (0, 300, 600):
        publish(bench, client, start, 300)
    with closing(sqlite3.connect(bench.database.path)) as file, file:
        file.execute("UPDATE stream_contents SET header = x'00' WHERE id = 2")
    reader = consume(bench, prefetch=1000)
    assert [message.id for _, message, _ in reader.deliveries] == [*range(300), *range(600, 900)]
    assert bench.journal.damaged == 300


@pytest.mark.parametrize(
    ("change", "lost"),
    [("header = x'00'", range(300, 600)), ("content = CAST(x'00' || substr(content, 2) AS BLOB)", [300])],
    ids=["a chunk", "a message"],
)
def test_a_consumer_that_asks_gets_a_report_in_place_of_each_damaged_message(
    bench: Bench, client: Client, change: str, lost: Sequence[int]
) -> None:
    for start in (0, 300):
        publish(bench, client, start, 300)
    with closing(sqlite3.connect(bench.database.path)) as file, file:
        file.execute(f"UPDATE stream_contents SET {change} WHERE id = 2")
    reader = consume(bench, prefetch=1000, report_damage=True)
    assert [message.id for _, message, _ in reader.deliveries] == [*range(600)]
    assert [message.id for _, message, is_redelivered in reader.deliveries if is_redelivered] == list(lost)
    assert reader.bodies[lost[-1]] == b""
    headers = Properties(raw_properties_of(reader.contents[lost[0]])).headers
    assert headers["x-stream-offset"] == lost[0]
    assert str(headers["x-stream-damaged"]).startswith(("its header is damaged", "its checksum is"))
    last = consume(bench, "last", report_damage=True)
    assert [message.id for _, message, _ in last.deliveries] == [599]


def test_messages_that_are_not_written_count_as_memory_with_their_properties(bench: Bench, client: Client) -> None:
    for _ in range(100):
        client.publish("", "s", b"", headers={"x": "y" * 10_000})
    bench.turn()
    assert bench.broker.memory.total > 100 * 10_000
    client.channel.declarer.delete_queue("s", if_unused=False, if_empty=False)
    bench.turn()
    assert bench.broker.memory.log == 0


class Impatient(Chores):
    """Chores that are done one step at a time."""

    def _has_time(self) -> bool:
        return False

    def step(self) -> None:
        chore = self._waiting.popleft()
        if not self._do(chore):
            self._waiting.append(chore)


def test_consumers_are_served_in_turn_in_small_steps(bench: Bench, client: Client) -> None:
    for first in range(0, 1200, 600):
        publish(bench, client, first, 600, filter=first)
    bench.broker.chores = chores = Impatient(bench.broker.internal_errors)
    readers = [consume(bench, number, 65535) for number in range(30)]
    assert not any(reader.bodies for reader in readers)
    while chores.has_work or bench.broker.awake:
        if chores.has_work:
            before = sum(len(reader.bodies) for reader in readers)
            chores.step()
            assert sum(len(reader.bodies) for reader in readers) <= before + 500
            assert max(len(reader.bodies) for reader in readers) <= min(len(reader.bodies) for reader in readers) + 1000
        bench.turn()
    assert [reader.bodies for reader in readers] == [numbers(*range(first, 1200)) for first in range(30)]


def test_a_stream_that_is_deleted_while_it_delivers(bench: Bench, client: Client) -> None:
    publish(bench, client, 0, 1600)
    bench.broker.chores = chores = Impatient(bench.broker.internal_errors)
    staying, leaving = consume(bench, prefetch=65535), consume(bench, prefetch=65535)
    chores.step()
    leaving.channel.cancel(next(iter(leaving.channel.consumers)))
    chores.step()
    assert (len(staying.bodies), leaving.bodies) == (1000, [])
    client.channel.declarer.delete_queue("s", if_unused=False, if_empty=False)
    bench.turn()
    while chores.has_work:
        chores.step()
    assert (len(staying.bodies), leaving.bodies) == (1000, [])
    assert bench.broker.memory.queues == 1000 * (MESSAGE_BYTES + UNACKNOWLEDGED_BYTES)
    staying.channel.ack(0, multiple=True)
    while chores.has_work:
        chores.step()
    bench.turn()
    assert bench.broker.memory.queues == 0
