"""Publishing ids: headers by which a HoltMQ stream recognises a message that is published again. Runs on the executors.

The messages of a task are numbered. A task that runs again publishes the same rows in the same order with the same numbers, if
the query is deterministic. The number of the micro-batch is the upper half of an id, so that the ids of a publisher only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark import TaskContext

from holtmq.client.publisher import Outgoing
from holtmq.errors import FrameError
from holtmq.queueing.publishing_id import NUMBERING_HEADERS, PUBLISHER, PUBLISHER_HEADER, PUBLISHING_ID_HEADER
from holtmq.spark.amqp.encoded_properties import join_properties, split_properties
from holtmq.wire.tables import drop_field, encode_value, long_string, short_string

ROW_BITS = 32
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties that Spark gives to the tasks of a micro-batch."""


class MessageNumbers:
    """Numbers the messages of one task."""

    def __init__(self, publisher: str, first: int = 0) -> None:
        self._publisher = short_string(PUBLISHER_HEADER) + encode_value(publisher) + short_string(PUBLISHING_ID_HEADER) + b"l"
        self._next = first

    @classmethod
    def of_task(cls, publisher: str) -> MessageNumbers:
        """Return the ids of the current task. In a micro-batch, the query is a part of the publisher's name."""
        task = TaskContext.get()
        assert task is not None, "runs on the executors"
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            return cls(f"{publisher}/{task.partitionId()}")
        return cls(f"{publisher}/{query}/{task.partitionId()}", int(batch) << ROW_BITS)

    def number(self, messages: Iterable[Outgoing]) -> Iterator[Outgoing]:
        """Yield the messages with the headers, in place of those that they may have from an earlier publisher."""
        for message in messages:
            fields = split_properties(message.raw_properties)
            headers = _drop_numbers(fields.get("headers", bytes(4)))
            fields["headers"] = long_string(headers[4:] + self._publisher + self._next.to_bytes(8, "big"))
            self._next += 1
            yield message._replace(raw_properties=join_properties(fields))


def unnumbered(messages: Iterable[Outgoing]) -> Iterator[Outgoing]:
    """Yield the messages without the headers that they may have from an earlier publisher.

    Tasks publish in parallel, hence in another order, and a stream only keeps the highest id of a publisher.
    """
    for message in messages:
        if PUBLISHER not in message.raw_properties:
            yield message
            continue
        fields = split_properties(message.raw_properties)
        try:
            fields["headers"] = _drop_numbers(fields["headers"])
        except (FrameError, KeyError):  # in headers that cannot be read, or in another property: it numbers nothing
            yield message
        else:
            yield message._replace(raw_properties=join_properties(fields))


def _drop_numbers(headers: bytes) -> bytes:
    for name in NUMBERING_HEADERS:
        headers = drop_field(headers, name) if name.encode() in headers else headers
    return headers
