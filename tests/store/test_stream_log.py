"""Streams in a store: what was appended is read at its offset, until retention removes whole chunks from the front."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.steps import complete
from holtmq.store.sql.stream_log import CACHED_BYTES, MERGED_EVERY, SMALL_MESSAGES, StreamLog
from holtmq.store.sqlite.database import STEPS, SqliteDatabase
from holtmq.store.stream_chunk import StreamChunk, pack_stream_chunk
from holtmq.store.stream_port import StreamEntry, StreamExtent, StreamMessage
from holtmq.wire.content import encode_properties
from tests.places import database_at, look, look_for_one

RAW = encode_properties({"delivery_mode": 2})
NOW = 1_700_000_000_000
STREAM = 7


def entry(number: int, at: int = NOW, **more: object) -> StreamEntry:
    return StreamEntry("ex", f"key.{number % 3}", RAW, b"body %d" % number, at)._replace(**more)  # type: ignore[arg-type]


def entries(first: int, number: int, at: int = NOW) -> list[StreamEntry]:
    return [entry(one, at) for one in range(first, first + number)]


class Streams:
    """The streams of a file, each change in a transaction of its own."""

    def __init__(self, place: str) -> None:
        self.database = database_at(place)
        self.log = StreamLog(self.database)

    def append(self, some: Sequence[StreamEntry], most_bytes: int = 1024 * 1024) -> list[int | None]:
        with self.database.transaction():
            return complete(self.log.append(STREAM, some, most_bytes))

    def trim(self, max_bytes: int | None = None, since_ms: int | None = None) -> int:
        with self.database.transaction():
            return complete(self.log.trim(STREAM, max_bytes, since_ms))

    def append_in_vain(self, some: Sequence[StreamEntry]) -> list[bytes]:
        """Append messages in a transaction that is rolled back, and return what was there before its end."""
        try:
            with self.database.transaction():
                complete(self.log.append(STREAM, some))
                found = self.bodies()
                raise ZeroDivisionError
        except ZeroDivisionError:
            return found

    def bodies(self, offset: int = 0, limit: int = 10**6) -> list[bytes]:
        return [message.body for message in self.log.read(STREAM, offset, limit, 10**9).messages]


@pytest.fixture
def streams(durable_place: str) -> Iterator[Streams]:
    streams = Streams(durable_place)
    yield streams
    streams.database.close()


@given(
    st.lists(
        st.builds(
            StreamEntry,
            st.sampled_from(["", "ex\u00e9"]),
            st.sampled_from(["a", "a.b", ""]),
            st.sampled_from([b"\0\0", RAW, b"\x20\0\0\0\0\0"]),
            st.binary(max_size=300),
            st.integers(0, 2**40),
            st.none(),
            st.just(0),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 2**60),
)
@settings(max_examples=50)
def test_a_chunk_is_unpacked_as_it_was_packed(packed: list[StreamEntry], first_offset: int) -> None:
    times = sorted(one.timestamp_ms for one in packed)
    chunk = StreamChunk(first_offset, len(packed), *pack_stream_chunk(first_offset, packed, times))
    assert chunk.is_intact
    assert [message.offset for message in chunk.messages()] == list(range(first_offset, first_offset + len(packed)))
    assert chunk.entries() == [one._replace(timestamp_ms=at) for one, at in zip(packed, times, strict=True)]


def test_a_flipped_bit_damages_one_message_or_is_noticed_in_the_header() -> None:
    packed = entries(0, 4)
    header, content = pack_stream_chunk(5, packed, [NOW] * 4)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        chunk = StreamChunk(5, 4, header, bytes(flipped))
        assert chunk.damage is None
        assert len(list(chunk.messages())) == 3
    for place in range(len(header)):
        damaged = bytearray(header)
        damaged[place] ^= 1 << place % 8
        for wrong in (bytes(damaged), header[:place]):
            chunk = StreamChunk(5, 4, wrong, content)
            assert (chunk.damage or "").startswith("its header is damaged")
            assert list(chunk.messages()) == []
            assert chunk.next_offset == 9


def test_messages_get_offsets_from_zero_without_gaps(streams: Streams) -> None:
    assert streams.append(entries(0, 3)) == [0, 1, 2]
    assert streams.append(entries(3, 5000)) == list(range(3, 5003))
    assert streams.append([entry(5003)]) == [5003]
    reading = streams.log.read(STREAM, 4999, 3)
    assert reading.messages == [
        StreamMessage(offset, NOW, "ex", f"key.{offset % 3}", RAW, b"body %d" % offset) for offset in (4999, 5000, 5001)
    ]
    assert reading.next_offset == 5002
    assert len(streams.bodies()) == 5004
    assert streams.log.read(STREAM, 5004, 10).messages == []
    assert streams.log.read(STREAM + 1, 0, 10) == ([], 0)


def test_a_reading_ends_at_its_limit_of_bytes_but_has_one_message_at_least(streams: Streams) -> None:
    streams.append(entries(0, 10))
    assert len(streams.log.read(STREAM, 0, 100, 13).messages) == 3
    assert len(streams.log.read(STREAM, 0, 100, 1).messages) == 1


def test_small_appends_share_a_chunk(streams: Streams) -> None:
    for number in range(3 * SMALL_MESSAGES):
        streams.append([entry(number)])
    assert streams.log.extent(STREAM).chunks <= 3 + MERGED_EVERY
    assert streams.bodies() == [b"body %d" % number for number in range(3 * SMALL_MESSAGES)]


def test_a_message_larger_than_a_chunk_has_one_of_its_own(streams: Streams) -> None:
    streams.append([entry(0), entry(1, body=bytes(1000)), entry(2)], 100)
    extent = streams.log.extent(STREAM)
    assert (extent.chunks, extent.next_offset) == (3, 3)


def test_the_file_is_little_larger_than_the_bodies(tmp_path: Path) -> None:
    path = tmp_path / "streams.db"
    streams = Streams(str(path))
    body = bytes(range(100))
    for start in range(0, 40_000, 2_000):
        streams.append([entry(start + number, NOW + number, routing_key="key", body=body) for number in range(2_000)])
    streams.database.close()
    assert path.stat().st_size < 1.15 * 40_000 * len(body)


def test_a_time_is_found(streams: Streams) -> None:
    for start in range(0, 5000, 1000):
        streams.append([entry(start + number, NOW + 10 * (start + number)) for number in range(1000)])
    for wanted in (0, 1, 999, 1000, 2345, 4999):
        assert streams.log.find(STREAM, NOW + 10 * wanted) == wanted
        assert streams.log.find(STREAM, NOW + 10 * wanted - 5) == wanted
    assert streams.log.find(STREAM, 0) == 0
    assert streams.log.find(STREAM, NOW + 10**9) == 5000
    assert streams.log.find(STREAM + 1, NOW) == 0


def test_a_clock_that_was_set_back_does_not_disorder_times(streams: Streams) -> None:
    streams.append(entries(0, 300, NOW))
    streams.append([*entries(300, 1, NOW - 5000), *entries(301, 1, NOW + 1)])
    assert [message.timestamp_ms for message in streams.log.read(STREAM, 299, 9).messages] == [NOW, NOW, NOW + 1]
    assert streams.log.find(STREAM, NOW + 1) == 301


def test_retention_removes_whole_chunks_and_keeps_the_last(streams: Streams) -> None:
    for start in range(0, 3000, 300):
        streams.append(entries(start, 300, NOW + start))
    full = streams.log.extent(STREAM)
    assert (full.first_offset, full.next_offset, full.chunks) == (0, 3000, 10)
    assert (full.first_at, full.last_at) == (NOW, NOW + 2700)
    assert streams.trim(since_ms=NOW + 600) == 600
    assert streams.trim(since_ms=NOW + 600) == 0
    left = streams.log.extent(STREAM)
    assert (left.first_offset, left.next_offset, left.chunks, left.first_at) == (600, 3000, 8, NOW + 600)
    assert streams.trim(max_bytes=left.size - 1) == 300
    assert streams.log.extent(STREAM).size < left.size - 1
    assert streams.log.read(STREAM, 0, 1).messages[0].offset == 900  # what was removed is skipped
    streams.trim(max_bytes=0, since_ms=NOW + 10**6)
    last = streams.log.extent(STREAM)
    assert (last.first_offset, last.next_offset, last.chunks) == (2700, 3000, 1)
    assert streams.append([entry(3000)]) == [3000]


def test_an_empty_stream_has_no_extent(streams: Streams) -> None:
    assert streams.log.extent(STREAM) == StreamExtent()
    assert streams.trim(max_bytes=0) == 0


def test_duplicates_of_a_numbered_publisher_are_left_out(streams: Streams, durable_place: str) -> None:
    def numbered(publisher: str | None, *ids: int) -> list[StreamEntry]:
        return [entry(number, publisher=publisher, publishing_id=number) for number in ids]

    assert streams.append(numbered("p", 0, 1, 1, 2)) == [0, 1, None, 2]
    assert streams.append([*numbered("p", 2, 5), *numbered("q", 2), *numbered(None, 0)]) == [None, 3, 4, 5]
    assert streams.append(numbered("p", 3, 4)) == [None, None]
    streams.database.close()
    again = Streams(durable_place)
    assert again.append(numbered("p", 5, 6)) == [None, 6]
    assert again.log.last_publishing_id(STREAM, "p") == 6
    assert again.log.last_publishing_id(STREAM, "unknown") is None
    again.database.close()


def test_a_position_is_kept(streams: Streams, durable_place: str) -> None:
    assert streams.log.position(STREAM, "billing") is None
    with streams.database.transaction():
        streams.log.set_position(STREAM, "billing", 3)
        streams.log.set_position(STREAM, "billing", 4)
        streams.log.set_position(STREAM, "audit", 0)
        streams.log.set_position(STREAM + 1, "audit", 9)
    streams.database.close()
    again = Streams(durable_place)
    assert again.log.positions(STREAM) == {"audit": 0, "billing": 4}
    with again.database.transaction():
        again.log.forget_position(STREAM, "audit")
    assert again.log.position(STREAM, "audit") is None
    again.database.close()


def test_a_forgotten_stream_leaves_nothing_behind(streams: Streams, durable_place: str) -> None:
    with streams.database.transaction():
        complete(streams.log.append(STREAM + 1, entries(0, 10)))
        streams.log.set_position(STREAM, "reader", 3)
    streams.append([entry(number, publisher="p", publishing_id=number) for number in range(5000)])
    with streams.database.transaction():
        complete(streams.log.forget(STREAM))
    for table, left in (("chunks", 1), ("contents", 1), ("publishers", 0), ("positions", 0)):
        assert look_for_one(durable_place, f"SELECT count(*) FROM stream_{table}") == left


def test_what_is_rolled_back_was_never_there(streams: Streams) -> None:
    streams.append(entries(0, 3))
    assert streams.append_in_vain(entries(100, 2))[3:] == [b"body 100", b"body 101"]
    assert streams.append(entries(3, 2)) == [3, 4]
    assert streams.bodies() == [b"body %d" % number for number in range(5)]


def test_readers_share_a_chunk(streams: Streams) -> None:
    streams.append(entries(0, 1000))
    assert streams.log.chunk(STREAM, 10) is streams.log.chunk(STREAM, 900)


def test_chunks_in_memory_are_few(streams: Streams) -> None:
    streams.append([entry(number, body=bytes(200_000)) for number in range(2 * CACHED_BYTES // 200_000)])
    for _ in streams.log.read(STREAM, 0, 10**6, 10**9).messages:
        pass
    assert 0 < streams.log.memory <= CACHED_BYTES


def test_properties_count_as_memory_of_a_chunk(streams: Streams) -> None:
    streams.append([entry(number, body=b"", raw_properties=bytes([number]) * 1000) for number in range(100)])
    assert streams.bodies() == [b""] * 100
    assert 100_000 < streams.log.memory < 200_000


def test_a_chunk_without_content_is_damaged(durable_place: str, streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    streams.append(entries(0, 3))
    look(durable_place, "DELETE FROM stream_contents")
    assert streams.append(entries(3, 40)) == list(range(3, 43))
    assert streams.bodies() == [b"body %d" % number for number in range(3, 43)]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_many_publishers_are_handled_in_steps(streams: Streams) -> None:
    some = [entry(number, publisher=f"p{number}", publishing_id=0) for number in range(2000)]
    with streams.database.transaction():
        assert sum(1 for _ in streams.log.append(STREAM, some)) > 10
        assert complete(streams.log.append(STREAM, some)) == [None] * 2000
    with streams.database.transaction():
        assert sum(1 for _ in streams.log.forget(STREAM)) > 3
    assert streams.log.last_publishing_id(STREAM, "p1999") is None


def damage(place: str, column: str, change: Callable[[bytes], bytes]) -> None:
    """Change the second chunk behind the program's back."""
    content = look_for_one(place, f"SELECT {column} FROM stream_contents WHERE id = 2")
    look(place, f"UPDATE stream_contents SET {column} = ? WHERE id = 2", (change(content),))


@pytest.mark.parametrize(
    ("column", "lost"), [("header", range(300, 600)), ("content", [301])], ids=["a whole chunk", "one message"]
)
def test_damage_is_reported_once_and_skipped(
    streams: Streams, durable_place: str, column: str, lost: Sequence[int], caplog: pytest.LogCaptureFixture
) -> None:
    for start in range(0, 900, 300):
        streams.append(entries(start, 300))
    damage(durable_place, column, lambda content: content[:10] + b"?" + content[11:])
    with caplog.at_level(logging.ERROR):
        first, second = (streams.log.read(STREAM, 0, 10**6, 10**9).messages for _ in range(2))
    assert first == second
    assert [message.offset for message in first] == [offset for offset in range(900) if offset not in lost]
    assert len(caplog.records) == 1
    assert f"from offset {lost[0]} on are damaged" in caplog.text
    assert streams.log.damaged == len(lost)
    assert streams.log.read(STREAM, lost[0], 1).messages[0].offset == lost[-1] + 1


def test_a_damaged_last_chunk_is_not_written_again(streams: Streams, durable_place: str) -> None:
    streams.append(entries(0, 300))
    streams.append(entries(300, 2))
    damage(durable_place, "content", lambda content: content[:-1] + b"?")
    assert streams.append(entries(302, 1)) == [302]
    assert streams.append(entries(303, MERGED_EVERY)) == list(range(303, 303 + MERGED_EVERY))
    assert streams.bodies(300) == [b"body 300", *(b"body %d" % number for number in range(302, 303 + MERGED_EVERY))]
    assert streams.log.extent(STREAM).chunks == 3, "what was appended after it is merged"


def test_a_file_of_version_7_gets_streams(tmp_path: Path) -> None:
    path = tmp_path / "streams.db"
    SqliteDatabase(path, steps=STEPS[:7]).close()
    streams = Streams(str(path))
    assert streams.append(entries(0, 2)) == [0, 1]
    streams.database.close()


STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 30)),
    st.tuples(st.just("append"), st.sampled_from([1, 1, 199, 201, 450])),
    st.tuples(st.just("trim"), st.integers(0, 60_000)),
    st.tuples(st.just("age"), st.integers(0, 2000)),
    st.tuples(st.just("roll back"), st.integers(1, 5)),
)


@given(st.lists(STEP, max_size=25), st.data())
@settings(max_examples=40, deadline=None)
def test_a_stream_is_a_list_that_loses_its_beginning(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    streams = Streams(":memory:")
    model: list[tuple[int, bytes]] = []
    first = 0
    for step, number in steps:
        at = NOW + len(model)
        match step:
            case "append":
                some = entries(len(model), number, at)
                assert streams.append(some) == list(range(len(model), len(model) + number))
                model += [(at, one.body) for one in some]
            case "trim":
                first += streams.trim(max_bytes=number)
                extent = streams.log.extent(STREAM)
                assert extent.size <= number or extent.chunks <= 1
            case "age":
                removed = streams.trim(since_ms=NOW + number)
                assert all(at < NOW + number for at, _ in model[first : first + removed])
                first += removed
            case _:
                streams.append_in_vain(entries(0, number))
    extent = streams.log.extent(STREAM)
    assert (extent.first_offset, extent.next_offset) == (first, len(model))
    offset = data.draw(st.integers(0, len(model) + 1))
    found = streams.log.read(STREAM, offset, 10**6, 10**9).messages
    start = max(offset, first)
    assert [(one.offset, one.timestamp_ms, one.body) for one in found] == [
        (start + place, *expected) for place, expected in enumerate(model[start:])
    ]
    wanted = NOW + data.draw(st.integers(-1, len(model) + 1))
    expected = next((place for place, (at, _) in enumerate(model) if at >= wanted and place >= first), len(model))
    assert streams.log.find(STREAM, wanted) == expected
    streams.database.close()
