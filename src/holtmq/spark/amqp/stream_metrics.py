"""What a stream of messages has done and what is left, as Spark reports it in the progress of a query.

The reader adds the metrics to the offset that it reports (`reportLatestOffset`), so that they are in `query.lastProgress`, in
the events of a StreamingQueryListener, and in Spark's logs, below `sources[…].latestOffset`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    """Counts since the query started. They describe the moment at which its last micro-batch was planned."""

    lag: int | None
    """Messages that no finished micro-batch includes: ready in the queues, or received. None if the broker did not answer."""
    received: int
    """Messages that were received, redelivered ones included."""
    acknowledged: int
    redelivered: int
    """Received messages that the broker marked as redelivered."""
    oldest_age_ms: int | None
    """Age of the oldest of those that were received: since its timestamp or, without one, its receipt."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        return asdict(self)

    def __add__(self, other: StreamMetrics) -> StreamMetrics:
        ages = [age for age in (self.oldest_age_ms, other.oldest_age_ms) if age is not None]
        return StreamMetrics(
            None if self.lag is None or other.lag is None else self.lag + other.lag,
            self.received + other.received,
            self.acknowledged + other.acknowledged,
            self.redelivered + other.redelivered,
            max(ages, default=None),
        )


def stream_metrics(query: StreamingQuery) -> StreamMetrics | None:
    """Return the metrics of a query that reads `format("amqp")`, or None before its first micro-batch. Runs on the driver.

    If the query reads several such sources, their sum is returned.
    """
    names = {each.name for each in fields(StreamMetrics)}
    offsets = [values for values in _offsets(query, "latestOffset") if values.keys() >= names]
    found = [StreamMetrics(**{name: values[name] for name in names}) for values in offsets]
    return sum(found[1:], found[0]) if found else None


def final_metrics(query: StreamingQuery) -> StreamMetrics | None:
    """Return the metrics of a query that has ended. The messages of its last micro-batch, which is finished, do not wait."""
    metrics = stream_metrics(query)
    if metrics is None or metrics.lag is None:
        return metrics
    return replace(metrics, lag=max(0, metrics.lag - messages_read(query) + _messages(query, "startOffset")))


def messages_read(query: StreamingQuery) -> int:
    """Return how many messages were in all micro-batches of a query, since its checkpoint was created."""
    return _messages(query, "endOffset")


def _messages(query: StreamingQuery, kind: str) -> int:
    return sum(offset.get("messages", 0) for offset in _offsets(query, kind))


def _offsets(query: StreamingQuery, kind: str) -> list[dict[str, Any]]:
    progress = query.lastProgress
    offsets = [source[kind] for source in progress["sources"]] if progress else []
    parsed = [json.loads(offset) if isinstance(offset, str) else offset for offset in offsets]
    return [offset for offset in parsed if isinstance(offset, dict)]
