"""Streams in a file: append, read from any place, follow under a name; several processes, killed ones, and asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holtmq
from holtmq import EmbeddedBroker, StreamHandle, StreamRecord
from holtmq.wire.tables import long_string
from tests.broker.conftest import Bench
from tests.broker.test_stream_queue import consume, publish
from tests.deadline import PATIENCE_S
from tests.embedded.conftest import Clock
from tests.embedded.test_processes import assert_sound, in_child, in_children, numbers, say

LARGE = b"x" * 40_000
"""A body that fills a chunk: the next message is in another one, so that retention can remove this one."""


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def fill(stream: StreamHandle, count: int = 5) -> None:
    stream.append_many([(f"m{n}", f"orders.{'food' if n % 2 else 'books'}") for n in range(count)])


def test_a_message_is_read_as_it_was_appended(mq: EmbeddedBroker, clock: Clock) -> None:
    stream = mq.declare_stream("events")
    assert [stream.append(b"\x00"), stream.append("text", ["a", "b"]), stream.append({"n": 1}, headers={"h": 1})] == [0, 1, 2]
    raw, text, structured = stream.read()
    assert (raw.offset, raw.body, raw.routing_key, raw.exchange, raw.stream) == (0, b"\x00", "", "", "events")
    assert (text.offset, text.text, text.routing_key) == (1, "text", "a.b")
    assert (structured.json(), structured.headers["h"]) == ({"n": 1}, 1)
    assert structured.properties["content_type"] == "application/json"
    assert raw.timestamp == datetime.fromtimestamp(clock(), UTC)
    assert repr(text) == "StreamRecord(offset=1, routing_key='a.b', body=b'text')"
    assert [text, text] == list(stream.read(1, limit=1)) * 2
    assert len({raw, text, structured, *stream.read()}) == 3


def test_reading_removes_nothing_and_ends_where_the_stream_ended_when_it_began(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    reading = stream.read()
    stream.append("later")
    assert texts(reading) == ["m0", "m1", "m2", "m3", "m4"]
    assert texts(stream.read(3)) == ["m3", "m4", "later"]
    assert stream.size() == 6


@pytest.mark.parametrize(
    ("start", "expected"),
    [("first", 0), ("last", 4), ("next", None), (0, 0), (3, 3), (5, None), (2**63 - 1, None)],
)
def test_reading_starts_anywhere(mq: EmbeddedBroker, start: Any, expected: int | None) -> None:
    stream = mq.declare_stream("events")
    assert list(stream.read(start)) == []
    fill(stream)
    assert [message.offset for message in stream.read(start)] == ([] if expected is None else list(range(expected, 5)))


def test_reading_starts_at_a_time(mq: EmbeddedBroker, clock: Clock) -> None:
    stream = mq.declare_stream("events")
    for text in ("m0", "m1", "m2"):
        clock.advance(10)
        stream.append(text)
    second = list(stream.read())[1].timestamp
    assert texts(stream.read(second)) == ["m1", "m2"]
    assert texts(stream.read(second + timedelta(microseconds=1))) == ["m2"]
    assert texts(stream.read(second.astimezone())) == ["m1", "m2"]
    assert texts(stream.read(datetime(1960, 1, 1, tzinfo=UTC))) == ["m0", "m1", "m2"]
    assert texts(stream.read(second + timedelta(days=1))) == []


def test_times_do_not_go_back_when_the_clock_does(mq: EmbeddedBroker, clock: Clock) -> None:
    stream = mq.declare_stream("events")
    stream.append("m0")
    clock.advance(-100)
    stream.append("m1")
    first, second = stream.read()
    assert second.timestamp == first.timestamp


@pytest.mark.parametrize("start", ["begin", -1, 2**63, True, 1.5, None, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_place_that_makes_no_sense_is_refused_at_once(mq: EmbeddedBroker, start: Any) -> None:
    stream = mq.declare_stream("events")
    stream.follow("known")
    with pytest.raises(holtmq.InvalidValueError, match="a place in a stream must be 'first', 'last', 'next', an offset"):
        stream.read(start)
    for name in (None, "known", "new"):
        with pytest.raises(holtmq.InvalidValueError, match="or a datetime with a time zone"):
            stream.follow(name, start=start)
    with pytest.raises(holtmq.InvalidValueError, match="a place in a stream must be"):
        stream.seek("known", start)


def test_patterns_and_limits_choose_messages(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    stream.append("other", "a")
    assert texts(stream.read(pattern="orders.food")) == ["m1", "m3"]
    assert texts(stream.read(2, "#.books")) == ["m2", "m4"]
    assert texts(stream.read(2, ["a", "*.food"])) == ["m3", "other"]
    assert texts(stream.read(pattern="orders.*", limit=2)) == ["m0", "m1"]
    assert texts(stream.read(pattern="#", limit=0)) == []
    assert texts(stream.read(pattern=[])) == []
    with pytest.raises(holtmq.InvalidValueError, match="a limit must be an integer of at least 0, got integer -1"):
        stream.read(limit=-1)


def test_a_follower_continues_after_the_last_message_that_was_handled(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    for message in stream.follow("billing"):
        if message.offset == 2:
            break
    assert stream.position("billing") == 2, "the loop did not ask for the next message"
    assert texts(stream.follow("billing", wait_s=0)) == ["m2", "m3", "m4"]
    assert texts(stream.follow("billing", wait_s=0)) == []
    assert texts(stream.follow("audit", start=3, wait_s=0)) == ["m3", "m4"]
    assert texts(stream.follow("audit", start="first", wait_s=0)) == [], "the name is not new"
    assert stream.positions() == {"audit": 5, "billing": 5}


def test_a_new_name_has_its_place_from_the_start(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    stream.follow("billing", start="next")
    stream.append("m5")
    assert texts(stream.follow("billing", start="next", wait_s=0)) == ["m5"]


def test_without_a_name_nothing_is_kept(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    assert texts(stream.follow(start=3, wait_s=0)) == ["m3", "m4"]
    assert stream.positions() == {}


def test_a_position_is_committed_by_the_caller(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    for message in stream.follow("billing", auto_commit=False, wait_s=0):
        if message.offset == 1:
            stream.commit("billing", message)
    assert texts(stream.follow("billing", auto_commit=False, wait_s=0)) == ["m2", "m3", "m4"]
    stream.commit("billing", 3)
    with pytest.raises(holtmq.PositionLostError, match="is at offset 4 already, past the message at offset 3"):
        stream.commit("billing", 3)
    assert stream.position("billing") == 4
    with pytest.raises(holtmq.InvalidValueError, match="has offsets up to 4, got integer 5 to commit"):
        stream.commit("billing", 5)
    with pytest.raises(holtmq.InvalidValueError, match="the name of a position must not be empty"):
        stream.commit("", 1)


def test_a_message_of_another_stream_is_not_committed(mq: EmbeddedBroker) -> None:
    stream, other = mq.declare_stream("events"), mq.declare_stream("others")
    fill(stream)
    fill(other)
    (message,) = other.read(3, limit=1)
    with pytest.raises(holtmq.InvalidValueError, match="expected a message of stream 'events' to commit, got one of 'others'"):
        stream.commit("billing", message)
    assert stream.position("billing") is None


def test_a_position_is_never_after_the_end(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    for move in (stream.seek, lambda name, start: stream.follow(name, start=start)):
        with pytest.raises(holtmq.InvalidValueError, match="gets offset 5: expected at most that for position 'new', got 6"):
            move("new", 6)
    assert stream.position("new") is None
    assert stream.seek("new", 5) == 5
    stream.append("m5")
    assert texts(stream.follow("new", wait_s=0)) == ["m5"]


def test_a_result_and_its_position_are_one_transaction(mq: EmbeddedBroker) -> None:
    stream, results = mq.declare_stream("events"), mq.queue("results")
    fill(stream, 2)

    def handle(*, fails: bool) -> None:
        for message in stream.follow("billing", auto_commit=False, wait_s=0):
            with mq.transaction():
                results.put(message.text)
                stream.commit("billing", message)
                if fails and message.offset == 1:
                    raise RuntimeError

    with pytest.raises(RuntimeError):
        handle(fails=True)
    assert (results.size(), stream.position("billing")) == (1, 1)
    handle(fails=False)
    assert texts(results.list_messages()) == ["m0", "m1"]


def test_two_followers_of_the_same_name_do_not_store_a_result_twice(mq: EmbeddedBroker) -> None:
    stream, results = mq.declare_stream("events"), mq.queue("results")
    fill(stream, 2)

    def handle(message: StreamRecord) -> None:
        with mq.transaction():
            results.put(message.text)
            stream.commit("billing", message)

    first, second = (stream.follow("billing", auto_commit=False) for _ in range(2))
    handle(next(first))
    with pytest.raises(holtmq.PositionLostError, match="committed by another follower of this name"):
        handle(next(second))
    handle(next(first))
    assert texts(results.list_messages()) == ["m0", "m1"]


def test_a_position_can_be_moved_and_forgotten(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    assert len(list(stream.follow("billing", wait_s=0))) == 5
    assert stream.seek("billing", 3) == 3
    assert texts(stream.follow("billing", wait_s=0)) == ["m3", "m4"]
    assert stream.seek("billing", "next") == 5
    stream.forget("billing")
    assert stream.position("billing") is None
    assert len(list(stream.follow("billing", wait_s=0))) == 5


def test_a_position_moves_past_messages_that_do_not_match(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    assert texts(stream.follow("food", "*.food", wait_s=0)) == ["m1", "m3"]
    assert stream.position("food") == 5
    following = stream.follow("books", "*.books")
    assert [next(following).text, next(following).text] == ["m0", "m2"]
    assert stream.position("books") == 2, "m1 does not match, m2 is being handled"


def test_a_second_follower_of_the_same_name_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq, holtmq.open(path, durability="off") as other:
        stream = mq.declare_stream("events")
        fill(stream)
        compete(stream, stream.follow("billing"), stream.follow("billing"))
        compete(stream, stream.follow("billing"), other.stream("events").follow("billing"))


def compete(stream: StreamHandle, first: Iterator[StreamRecord], second: Iterator[StreamRecord]) -> None:
    assert [next(first).text, next(second).text, next(first).text] == ["m0", "m0", "m1"]
    with pytest.raises(holtmq.PositionLostError, match="was at offset 0 and was moved to 1 by another follower of this name"):
        next(second)
    assert next(first).text == "m2"
    stream.forget("billing")
    with pytest.raises(holtmq.PositionLostError, match="was at offset 2 and was removed by another follower"):
        next(first)


def test_a_follower_waits_for_messages_of_its_own_process(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    with_time, without = stream.follow("a", wait_s=PATIENCE_S), stream.follow("b")
    late = threading.Timer(0, stream.append, ["hello"])
    late.start()
    assert [next(with_time).text, next(without).text] == ["hello", "hello"]
    late.join()
    with pytest.raises(
        holtmq.InvalidValueError, match="wait_s must be at least 0 seconds, or None to wait without end, got -1"
    ):
        stream.follow("c", wait_s=-1)


def test_a_follower_that_waits_learns_that_the_file_is_closed(tmp_path: Path) -> None:
    mq = holtmq.open(tmp_path / "shop.db", durability="off")
    following = mq.declare_stream("events").follow()
    closing = threading.Timer(0, mq.close)
    closing.start()
    with pytest.raises(holtmq.StoreClosedError):
        next(following)
    closing.join()


def test_retention_by_size_removes_the_oldest_messages(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events", max_bytes=100_000)
    for _ in range(5):
        stream.append(LARGE)
    assert [message.offset for message in stream.read()] == [3, 4]
    assert [message.offset for message in stream.read(1)] == [3, 4]
    extent = stream.extent()
    assert (extent.first_offset, extent.next_offset, extent.number, stream.size()) == (3, 5, 2, 2)
    assert 80_000 < extent.size <= 100_000


def test_retention_by_age_removes_the_oldest_messages(mq: EmbeddedBroker, clock: Clock) -> None:
    stream = mq.declare_stream("events", max_age_s=60)
    for _ in range(5):
        stream.append(LARGE)
        clock.advance(25)
    assert [message.offset for message in stream.read()] == [2, 3, 4]


def test_a_follower_learns_what_retention_removed_before_it_could_read_it(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events", max_bytes=100_000)
    following = stream.follow("billing")
    stream.append(LARGE)
    assert next(following).offset == 0
    for _ in range(5):
        stream.append(LARGE)
    with pytest.raises(holtmq.PositionLostError, match=r"at offset 1, but retention removed 3 messages from there to offset 3"):
        next(following)
    with pytest.raises(holtmq.PositionLostError, match=r"call seek\('billing', 'first'\) to skip them"):
        next(stream.follow("billing"))
    assert stream.seek("billing", "first") == 4
    assert [message.offset for message in stream.follow("billing", wait_s=0)] == [4, 5]
    assert [message.offset for message in stream.follow(start=0, wait_s=0)] == [4, 5], "without a name, nothing was promised"


def test_a_damaged_message_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq:
        mq.declare_stream("events").append_many([("zero", "k"), ("one", "k"), ("two", "k")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE stream_contents SET content = CAST(replace(content, 'one', 'eno') AS BLOB)")
    with holtmq.open(path, durability="off") as mq:
        stream = mq.stream("events")
        assert texts(stream.read()) == texts(stream.follow("billing", wait_s=0)) == ["zero", "two"]
        assert (stream.position("billing"), stream.append("three")) == (3, 3)
    assert "stream 'events' from offset 1 on are damaged" in caplog.text


def test_a_stream_is_not_used_as_a_queue_nor_a_queue_as_a_stream(mq: EmbeddedBroker) -> None:
    mq.declare_stream("events")
    queue = mq.queue("inbox")
    for use in (mq.queue, mq.consumer, mq.producer):
        with pytest.raises(
            holtmq.PreconditionFailedError, match=r"'events' is a stream.*use stream\('events'\) to append, read"
        ):
            use("events")
    with pytest.raises(holtmq.PreconditionFailedError, match=r"'inbox' is a queue, not a stream: use queue\('inbox'\) to put"):
        mq.stream("inbox")
    mq.delete_queue("inbox")
    mq.declare_stream("inbox")
    calls: list[Callable[[], object]]
    calls = [lambda: queue.put("m"), queue.pop, queue.size, lambda: queue.put_many([("m", "k")]), queue.purge]
    for call in calls:
        with pytest.raises(holtmq.PreconditionFailedError, match="'inbox' is a stream"):
            call()
    stream = mq.stream("inbox")
    mq.delete_queue("inbox")
    mq.declare_queue("inbox")
    calls = [lambda: stream.append("m"), stream.read, stream.follow, stream.extent, lambda: stream.commit("a", 1)]
    for call in calls:
        with pytest.raises(holtmq.PreconditionFailedError, match="'inbox' is a queue, not a stream"):
            call()


def test_a_stream_is_declared_once(mq: EmbeddedBroker) -> None:
    mq.declare_stream("events", max_age_s=60, max_bytes=1000)
    mq.declare_stream("events", arguments={"x-max-age": "60s", "x-max-length-bytes": 1000})
    assert mq.stream("events").append("m") == 0
    assert mq.stream("new").append("m") == 0
    with pytest.raises(holtmq.PreconditionFailedError, match="inequivalent arg 'x-max-age' for queue 'events'"):
        mq.declare_stream("events", max_age_s=61, max_bytes=1000)
    with pytest.raises(holtmq.PreconditionFailedError, match="inequivalent arg"):
        mq.declare_queue("events")
    with pytest.raises(holtmq.PreconditionFailedError, match="'other' is of type stream: declare it with declare_stream"):
        mq.declare_queue("other", arguments={"x-queue-type": "stream"})
    declared = {queue.name: dict(queue.arguments) for queue in mq.topology().queues}
    assert declared == {
        "events": {"x-queue-type": "stream", "x-max-age": "60s", "x-max-length-bytes": 1000},
        "new": {"x-queue-type": "stream"},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_age_s": 0},
        {"max_age_s": 1.5},
        {"max_bytes": -1},
        {"arguments": {"x-max-age": "soon"}},
        {"arguments": {"x-max-length": 5}},
        {"arguments": {"x-message-ttl": 5}},
    ],
)
def test_limits_that_make_no_sense_for_a_stream_are_refused(mq: EmbeddedBroker, wrong: dict[str, Any]) -> None:
    with pytest.raises(holtmq.PreconditionFailedError):
        mq.declare_stream("events", **wrong)
    assert mq.topology().queues == ()


def test_a_deleted_stream_leaves_nothing_to_its_successor(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    fill(stream)
    following, reading = stream.follow("billing"), stream.read()
    next(following)
    mq.delete_queue("events")
    with pytest.raises(holtmq.NotFoundError, match="no stream 'events'"):
        stream.append("m")
    mq.declare_stream("events")
    assert (list(stream.read()), stream.positions(), stream.append("m")) == ([], {}, 0)
    with pytest.raises(holtmq.PositionLostError, match="was removed"):
        list(following)
    with pytest.raises(holtmq.NotFoundError, match="stream 'events' was deleted while it was read"):
        list(reading)


def test_an_exchange_routes_into_streams_as_into_queues(mq: EmbeddedBroker) -> None:
    mq.declare_exchange("orders", "topic")
    stream, queue = mq.declare_stream("events"), mq.queue("food")
    mq.bind("events", "orders", "orders.#")
    mq.bind("food", "orders", "orders.food")
    both = mq.publish("bread", "orders.food", exchange="orders", headers={"h": 1}, priority=3, ttl_ms=1, delay_s=60)
    alone = [mq.publish("novel", "orders.books", exchange="orders") for _ in range(2)]
    queued = queue.put("later")
    assert mq.publish("nobody", "x", exchange="orders") is None
    ids = [number or 0 for number in (both, *alone, queued)]
    assert ids == sorted(set(ids)), "each message has its own id"
    found = [(message.offset, message.exchange, message.routing_key, message.text) for message in stream.read()]
    assert found == [
        (0, "orders", "orders.food", "bread"),
        (1, "orders", "orders.books", "novel"),
        (2, "orders", "orders.books", "novel"),
    ]
    assert next(stream.read()).headers["h"] == 1
    assert mq.publish("direct", "events") is not None
    assert texts(stream.read("last")) == ["direct"]


def test_a_stream_takes_dead_letters(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("broken")
    queue = mq.declare_queue("inbox", dead_letter_queue="broken")
    queue.put("m", "k")
    message = queue.pop()
    assert message is not None
    message.reject()
    (dead,) = stream.read()
    assert (dead.text, dead.routing_key, dead.headers["x-first-death-queue"]) == ("m", "broken", "inbox")


def test_a_stream_takes_dead_letters_whatever_their_numbers_and_order(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    inbox = mq.declare_queue("inbox", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "events"})
    for number in (5, 9):
        inbox.put(f"m{number}", headers={"x-publisher": "importer", "x-publishing-id": number})
    for message in reversed(inbox.pop_many(2)):
        message.reject()
    assert texts(stream.read()) == ["m9", "m5"]


def test_a_numbered_message_is_stored_once(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")

    def send(number: int) -> int | None:
        return stream.append(f"m{number}", headers={"x-publisher": "importer", "x-publishing-id": number})

    assert [send(7), send(7), send(6), send(9)] == [0, None, None, 1]
    assert stream.last_publishing_id("importer") == 9
    assert stream.last_publishing_id("other") is None
    assert mq.publish("m9", "events", headers={"x-publisher": "importer", "x-publishing-id": 9}) is not None
    assert texts(stream.read()) == ["m7", "m9"]


def test_a_batch_or_a_transaction_is_appended_as_a_whole_or_not_at_all(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    with pytest.raises(holtmq.InvalidValueError, match="a message must be bytes, text or JSON"):
        stream.append_many([("m0", "k"), (object(), "k")])  # type: ignore[list-item]

    def append_and_fail() -> None:
        with mq.transaction():
            assert stream.append("m0") == 0
            assert texts(stream.read()) == ["m0"]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        append_and_fail()
    assert list(stream.read()) == []
    assert stream.append_many([]) == range(0)
    assert stream.append_many([("m0", "k"), ("m1", ["a", "b"])]) == range(2)
    assert stream.append("m2", "k") == 2


def test_threads_append_without_gaps(mq: EmbeddedBroker) -> None:
    stream = mq.declare_stream("events")
    offsets: list[int] = []
    threads = [
        threading.Thread(target=lambda: offsets.extend([stream.append(str(n), "k") for n in range(20)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(80))


def test_processes_append_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq:
        mq.declare_stream("events")

    def append_some(pipe: int) -> None:
        with holtmq.open(path, durability="off") as mq:
            stream = mq.stream("events")
            for _ in range(30):
                say(pipe, stream.append("one", "k"))
            for offset in stream.append_many([("many", "k")] * 30):
                say(pipe, offset)

    results = [numbers(said) for said in in_children(append_some, count=4)]
    assert all(offsets == sorted(offsets) for offsets in results)
    assert sorted(offset for offsets in results for offset in offsets) == list(range(240))
    with holtmq.open(path, durability="off") as mq:
        assert [message.offset for message in mq.stream("events").read()] == list(range(240))


def test_a_follower_is_woken_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq:
        got: list[holtmq.StreamRecord] = []
        following = mq.declare_stream("events").follow("billing", wait_s=PATIENCE_S)
        waiting = threading.Thread(target=lambda: got.append(next(following)))
        waiting.start()

        def append_one(pipe: int) -> None:
            with holtmq.open(path, durability="off") as other:
                other.stream("events").append("hello")

        in_child(append_one)
        waiting.join()
        assert texts(got) == ["hello"]


def test_changes_of_another_process_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq, holtmq.open(path, durability="off") as other:
        mine = mq.declare_stream("events")
        other.stream("events").append("m0")
        assert texts(mine.read()) == ["m0"]
        other.stream("events").append("m1")
        assert texts(mine.read()) == ["m0", "m1"], "the chunk was rewritten"
        other.delete_queue("events")
        with pytest.raises(holtmq.NotFoundError, match="no stream 'events'"):
            mine.read()
        other.declare_stream("events")
        assert mine.append("new") == 0


def test_killed_while_appending_and_following(tmp_path: Path) -> None:
    """Every append that returned is there, at its offset, once; no offset is missing; no handled message is skipped."""
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="normal") as mq:
        mq.declare_stream("events").follow("billing")
    appended: dict[int, int] = {}
    handled: list[int] = []

    def work(pipe: int) -> None:
        with holtmq.open(path, durability="normal") as mq:
            stream = mq.stream("events")
            following = stream.follow("billing", wait_s=0)
            for n in range(1_000_000):
                say(pipe, stream.append(f"{n}", "k"))
                stream.append_many([("a", "k"), ("b", "k")])
                say(pipe, -next(following).offset - 1)

    for kill_after in range(0, 40, 4):
        said = numbers(in_child(work, kill_after=kill_after))
        for place, offset in enumerate(number for number in said if number >= 0):
            assert offset not in appended
            appended[offset] = place
        handled += [-number - 1 for number in said if number < 0]
        assert_sound(path)
    with holtmq.open(path) as mq:
        stream = mq.stream("events")
        there = list(stream.read())
        position = stream.position("billing")
    assert [message.offset for message in there] == list(range(len(there)))
    assert all(there[offset].text == str(place) for offset, place in appended.items())
    assert position is not None
    assert set(handled) >= set(range(position)), "what is before the position was handled"


def test_killed_in_a_transaction_nothing_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path) as mq:
        mq.declare_stream("events").append("m0")

    def half_a_transaction(pipe: int) -> None:
        with holtmq.open(path) as mq, mq.transaction():
            stream = mq.stream("events")
            stream.append("m1")
            stream.commit("billing", 1)
            os.kill(os.getpid(), signal.SIGKILL)

    in_child(half_a_transaction, kill_after=1)
    with holtmq.open(path) as mq:
        stream = mq.stream("events")
        assert (texts(stream.read()), stream.positions(), stream.append("m1")) == (["m0"], {}, 1)


def test_a_file_with_a_stream_changes_hands(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as mq:
        stream = mq.declare_stream("s", max_age_s=3600)
        stream.append_many([("a", "k"), ("b", "k")])
        stream.append("c", headers={"h": 1})
        stream.commit("billing", 0)
    bench = Bench(path)
    assert consume(bench, 1).bodies == [b"b", b"c"]
    publish(bench, bench.client(), 3, 2)
    bench.journal.close()
    with holtmq.open(path, durability="off") as mq:
        stream = mq.declare_stream("s", max_age_s=3600)
        assert [(message.offset, message.text) for message in stream.read()] == list(enumerate(["a", "b", "c", "3", "4"]))
        assert next(stream.read(2)).headers["h"] == 1
        assert stream.append("d") == 5
        assert texts(stream.follow("billing", wait_s=0)) == ["b", "c", "3", "4", "d"]


def test_headers_that_cannot_be_decoded_are_empty(tmp_path: Path) -> None:
    """An AMQP client may give a header a name that is not UTF-8."""
    path = tmp_path / "shop.db"
    bench = Bench(path)
    client = bench.client()
    for queue, arguments in (("s", {"queue_type": "stream"}), ("q", {"queue_type": "quorum"})):
        client.declare(queue, durable=True, **arguments)
        client.publish("", queue, b"m", headers=long_string(b"\x01\xffV"), app_id="shop", delivery_mode=2)
    bench.turn()
    bench.to_disk()
    bench.journal.close()
    with holtmq.open(path, durability="off") as mq:
        (record,) = mq.stream("s").read()
        assert (dict(record.headers), record.properties["app_id"], record.body) == ({}, "shop", b"m")
        first = mq.queue("q").pop()
        assert first is not None
        assert (dict(first.headers), first.properties["app_id"]) == ({}, "shop")
        first.retry()
        again = mq.queue("q").pop()
        assert again is not None
        assert again.headers == {"x-delivery-count": 1}


def test_asyncio_has_the_same_calls(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            stream = await mq.declare_stream("events", max_age_s=3600, max_bytes=10**9)
            assert await stream.append("m0", "orders.food") == 0
            assert await stream.append_many([("m1", "a"), ("m2", "orders.books")]) == range(1, 3)
            assert await mq.publish("m3", "events") is not None
            assert texts([message async for message in stream.read(1)]) == ["m1", "m2", "m3"]
            assert texts([message async for message in stream.read(pattern="orders.#", limit=1)]) == ["m0"]
            seen = [message async for message in stream.follow("billing", "orders.#", wait_s=0)]
            assert texts(seen) == ["m0", "m2"]
            assert await stream.position("billing") == 4
            assert await stream.seek("billing", 1) == 1
            await stream.commit("billing", seen[-1])
            assert await stream.positions() == {"billing": 3}
            await stream.forget("billing")
            assert (await stream.extent()).number == await stream.size() == 4
            assert await (await mq.stream("events")).last_publishing_id("p") is None
            with pytest.raises(holtmq.InvalidValueError, match="a place in a stream must be"):
                await anext(stream.read(-1))
            with pytest.raises(holtmq.InvalidValueError, match="a place in a stream must be"):
                await anext(stream.follow(start=-1))

    asyncio.run(main())


def test_the_loop_goes_on_while_a_follower_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            stream = await mq.stream("events")
            following = stream.follow("billing")
            waiting = asyncio.ensure_future(anext(following))
            assert await stream.size() == 0  # answered while the follower waits
            assert not waiting.done()
            await stream.append("m0")
            assert (await waiting).text == "m0"

    asyncio.run(main())


def test_followers_that_wait_do_not_keep_other_calls_from_running(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            stream = await mq.stream("events")
            waiting = [asyncio.ensure_future(anext(stream.follow())) for _ in range(40)]
            assert await stream.append("m") == 0
            assert {message.text for message in await asyncio.gather(*waiting)} == {"m"}

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_cancelled_follower_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            stream = await mq.stream("events")
            following = stream.follow("billing")
            for n in range(20):
                waiting = asyncio.ensure_future(anext(following))
                appending = asyncio.ensure_future(stream.append(f"m{n}"))
                await stream.size()
                waiting.cancel()  # before, while or after the follower finds the message
                await asyncio.gather(waiting, appending, return_exceptions=True)
                message = await anext(following) if waiting.cancelled() else waiting.result()
                assert message.text == f"m{n}"
            assert await stream.position("billing") == 19

    asyncio.run(main())
