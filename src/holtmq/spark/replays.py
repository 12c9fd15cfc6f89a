"""Replay: messages of an archive, chosen by time, key, queue and headers, published again and marked as such."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holtmq.client.publisher import ReceivedConfirms
from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.columns import SCHEMA
from holtmq.spark.amqp.writer import MARK
from holtmq.spark.deliveries import route
from holtmq.spark.publishing import publish
from holtmq.spark.times import message_time
from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange, Queue, Topology

CHOSEN = "chosen"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages of an archive: all of these must hold."""

    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None
    """A pattern, as of a topic exchange: `orders.#.premium`."""
    queue: str | None = None
    headers: Mapping[str, FieldValue] | None = None
    """These headers with these values, as of a headers exchange."""

    def of(self, archive: DataFrame) -> DataFrame:
        chosen = archive
        if self.since is not None or self.until is not None:
            time = message_time(archive)
            if time is None:
                raise InvalidValueError(f"expected a column timestamp or received_at, got {', '.join(archive.columns)}")
            chosen = chosen.where(time >= F.lit(self.since)) if self.since is not None else chosen
            chosen = chosen.where(time < F.lit(self.until)) if self.until is not None else chosen
        if self.queue is not None:
            chosen = chosen.where(F.col("source_queue") == self.queue)
        if self.key is not None or self.headers:
            chosen = (
                route(chosen, self._topology(), exchange=CHOSEN, unroutable="drop")
                .where("queue is not null")
                .drop("queue", "reason")
            )
        return chosen

    def _topology(self) -> Topology:
        """The choice as bindings, so that it means just what it means to a broker."""
        by_key = Binding(CHOSEN, "headers", self.key if self.key is not None else "#", destination_type="exchange")
        by_headers = Binding("headers", CHOSEN, "", {"x-match": "all-with-x", **(self.headers or {})})
        exchanges = (Exchange(CHOSEN, "topic"), Exchange("headers", "headers"))
        return Topology(exchanges, (Queue(CHOSEN),), (by_key, by_headers))


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    replay_id: str
    published: ReceivedConfirms

    def to_json(self) -> dict[str, Any]:
        return {"replay_id": self.replay_id, **asdict(self.published)}


def replay(
    archive: DataFrame,
    *,
    choice: Choice = Choice(),  # noqa: B008  # frozen
    exchange: str | None = None,
    rate: int = 0,
    replay_id: str | None = None,
    parallel: int = 2,
    **broker: Any,
) -> ReplaySummary:
    """Publish the chosen messages with their properties and keys, to their exchange or another.

    Each has a header `x-holtmq-replay` with the id of this replay. `rate` is in messages a second, 0 for no limit. The
    property user_id is left out: a broker takes it only from that user. `broker` are options of the sink (url and so on).
    """
    replay_id = replay_id or str(uuid.uuid4())
    names = [name for name in archive.columns if name in SCHEMA.names and name != "user_id"]
    chosen = choice.of(archive).select(*names)
    parallel = min(parallel, rate) if rate else parallel
    options = {**broker, "exchange": exchange, "rate": rate // parallel or None, MARK: replay_id}
    given = {name: value for name, value in options.items() if value is not None}
    return ReplaySummary(replay_id, publish(chosen.coalesce(parallel), **given))
