"""Offsets of stream queues: options, positions, ranges, and the progress in a checkpoint. No broker is needed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.offset_column import STREAM_SCHEMA
from holtmq.spark.amqp.offset_position import EPOCH, Position, Positions, since
from holtmq.spark.amqp.offset_range import MOST_OFFSETS, OffsetRange, split_ranges
from holtmq.spark.amqp.source import AmqpSource
from holtmq.spark.amqp.stream_progress import StreamProgress
from holtmq.spark.amqp.stream_queue_follower import StreamQueueFollower
from holtmq.spark.amqp.stream_queue_reader import StreamQueueReader

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"startingOffsets": "first"}, "option 'startingOffsets': got 'first': expected earliest, latest, an offset such as"),
        ({"startingOffsets": "-1"}, "option 'startingOffsets': got '-1'"),
        ({"startingOffsets": "9999999999D"}, "'startingOffsets': got 9999999999: expected a time span of at most 36500D, or"),
        ({"startingOffsets": "1000000D"}, "got 1000000: expected a time span of at most 36500D"),
        ({"startingOffsets": "9" * 5000 + "s"}, "expected a time span of at most 3153600000s"),
        ({"startingOffsets": "9" * 5000}, "expected an offset of at most 9223372036854775807"),
        ({"startingOffsets": '{"q": '}, "option 'startingOffsets': got .* which is not valid JSON"),
        ({"startingOffsets": "earliest", "endingOffsets": "never"}, "option 'endingOffsets': got 'never'"),
        ({"endingOffsets": "latest"}, "option 'startingOffsets' is missing: expected a value such as 'earliest'"),
        ({"startingOffsets": "earliest", "minPartitions": "0"}, "option 'minPartitions' must be a whole number of at least 1"),
        ({"startingOffsets": "earliest", "failOnDataLoss": "no"}, "option 'failOnDataLoss' must be true or false, got 'no'"),
        ({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "x"}, "option 'maxOffsetsPerTrigger' must be a whole number"),
        (
            {"startingOffsets": "earliest", "endingOffsets": "5", "maxOffsetsPerTrigger": "1"},
            r"option 'endingOffsets' is for batches .*, and option 'maxOffsetsPerTrigger' for streams .*: remove one of them",
        ),
        ({"startingOffsets": "earliest", "spool": "x"}, "unknown option 'spool': expected one of .*maxOffsetsPerTrigger"),
    ],
)
def test_load_refuses_wrong_options(options: dict[str, str], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        AmqpSource({"url": "amqp://127.0.0.1:1", "queue": "q", **options}).schema()


def test_the_first_use_refuses_the_options_of_the_other_use() -> None:
    given = {"url": "amqp://127.0.0.1:1", "queue": "q", "startingOffsets": "earliest"}
    with pytest.raises(InvalidValueError, match=r"option 'endingOffsets' is for batches \(spark\.read\), got it for a stream"):
        StreamQueueFollower({**given, "endingOffsets": "5"}).prepareForTriggerAvailableNow()
    with pytest.raises(InvalidValueError, match=r"option 'maxOffsetsPerTrigger' is for streams .*, got it for a batch"):
        StreamQueueReader({**given, "maxOffsetsPerTrigger": "5"})


def test_the_options_of_streams_add_the_column_offset() -> None:
    source = AmqpSource({"url": "amqp://127.0.0.1:1", "queue": "q", "STARTINGOFFSETS": "latest"})
    assert source.schema() == STREAM_SCHEMA
    assert STREAM_SCHEMA.names[-1] == "offset"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        (" 1200 ", 1200),
        ("2026-10-01T12:00:00", NOW),
        ("2026-10-01T14:00:00+02:00", NOW),
        ("2026-10-01", NOW.replace(hour=0)),
        ("0001-01-01T00:00+14:00", EPOCH),
        ("24h", timedelta(hours=24)),
        ("036500D", timedelta(days=36_500)),
        ("7D", timedelta(days=7)),
        ('{"q": 7, "other": "latest"}', 7),
        ('{"other": 7}', "latest"),
    ],
)
def test_a_position_is_a_name_an_offset_a_time_or_a_span(text: str, expected: Position) -> None:
    assert Positions.parse(text, default="latest").of("q") == expected


def test_a_time_span_reaches_back_to_1970_at_most() -> None:
    assert since(timedelta(hours=1), NOW) == NOW.replace(hour=11)
    assert since(timedelta(days=36_500), NOW) == EPOCH


@given(st.lists(st.integers(0, 500_000), max_size=4), st.integers(1, 40))
def test_ranges_cover_all_offsets_once_in_enough_parts(sizes: list[int], min_partitions: int) -> None:
    ranges = [OffsetRange(f"q{number}", 10, 10 + size, NOW) for number, size in enumerate(sizes)]
    parts = split_ranges(ranges, min_partitions)
    assert len(parts) >= min(min_partitions, sum(sizes))
    assert all(0 < len(part) <= MOST_OFFSETS for part in parts)
    for each in ranges:
        edges = [(part.start, part.end) for part in parts if part.queue == each.queue]
        assert [start for start, _ in edges] + [each.end] == [each.start, *(end for _, end in edges)] or not len(each)


def test_a_micro_batch_has_at_most_so_many_offsets_shared_by_lag() -> None:
    start = StreamProgress().starting("a", 0).starting("b", 100).starting("c", 5)
    end = start.advance({"a": 900, "b": 200, "c": 5}, 101, NOW)
    assert end.offsets == {"a": 91, "b": 110, "c": 5}
    assert [(each.queue, each.start, each.end) for each in end.ranges_since(start)] == [
        ("a", 0, 91),
        ("b", 100, 110),
        ("c", 5, 5),
    ]
    assert end.messages == 101
    rest = end.advance({"a": 900, "b": 200}, None, NOW)
    assert (rest.offsets, rest.messages) == ({"a": 900, "b": 200, "c": 5}, 1000)
    assert rest.advance({"a": 900, "b": 200}, None, NOW) is rest


def test_the_first_micro_batch_starts_where_it_started_before_a_crash() -> None:
    """Spark stores the end of a micro-batch only, and asks for the start of the first one again."""
    end = StreamProgress().starting("q", 10).advance({"q": 50}, None, NOW)
    stored = StreamProgress.parse(json.loads(json.dumps(end.to_dict())))
    asked_again = StreamProgress().starting("q", 90)  # "latest", after a crash
    (again,) = stored.ranges_since(asked_again)
    assert (again.start, again.end, again.planned_at) == (10, 50, NOW)


def test_the_checkpoint_of_a_query_on_other_queues_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="the checkpoint contains no offsets of stream queues, but segment, tick"):
        StreamProgress.parse({"segment": 0, "tick": 0})


def test_a_stream_that_appears_later_starts_at_its_first_offset() -> None:
    start = StreamProgress().starting("a", 0)
    end = start.starting("b", 7).advance({"a": 1, "b": 9}, None, NOW)
    assert [(each.queue, each.start, each.end) for each in end.ranges_since(start)] == [("a", 0, 1), ("b", 7, 9)]


def test_a_stream_that_was_declared_again_is_read_from_its_first_offset() -> None:
    read = StreamProgress().starting("q", 0).advance({"q": 100}, None, NOW)
    planned = read.starting("q", 0).advance({"q": 10}, None, NOW)
    stored = StreamProgress.parse(json.loads(json.dumps(planned.to_dict())))
    (again,) = stored.ranges_since(read)
    assert (again.start, again.end, stored.messages) == (0, 10, 110)
    (later,) = stored.advance({"q": 12}, None, NOW).ranges_since(stored)
    assert (later.start, later.end) == (10, 12)
