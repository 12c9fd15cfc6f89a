"""Dead letters: the message that leaves the queue it died in, with the `x-death` headers that record why.

Both the broker and the embedded library publish a dead letter anew, through the queue's dead-letter exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from holtmq.errors import FrameError
from holtmq.queueing.publishing_id import unnumbered
from holtmq.queueing.rules import QueueRules
from holtmq.routing.router import routing_keys
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_EXCHANGE
from holtmq.wire.content import CACHEABLE_BYTES, Properties, encode_properties
from holtmq.wire.tables import encode_value, join_table, split_table

DeathReason: TypeAlias = Literal["rejected", "expired", "maxlen", "delivery_limit"]
REJECTED: DeathReason = "rejected"
LETTERS_KEPT = 1000
Death: TypeAlias = dict[str, FieldValue]


class DeadLetter(NamedTuple):
    """A dead message, ready to be published."""

    exchange: str
    routing_keys: tuple[str, ...]
    """The routing key, followed by those that the CC header adds."""
    headers: Mapping[str, FieldValue]
    raw_properties: bytes
    deaths: Sequence[Death]
    """Newest first, including this one."""
    reason: DeathReason

    def is_cycle(self, queue: str) -> bool:
        """Return whether the message died in this queue before and no consumer has rejected it since.

        Such a message would go round forever; RabbitMQ drops it.
        """
        if self.reason == REJECTED:
            return False
        for place, death in enumerate(self.deaths):
            if death.get("queue") == queue:
                return all(earlier.get("reason") != REJECTED for earlier in self.deaths[: place + 1])
        return False


def dead_letter(
    properties: Properties,
    exchange: str,
    routing_key: str,
    *,
    queue: str,
    rules: QueueRules,
    exchanges: Collection[str],
    reason: DeathReason,
    now_ms: int,
) -> DeadLetter | None:
    """Return the dead letter of a message that was published to an exchange with a key and died in a queue.

    Return None if the queue has no dead-letter exchange, or names one that does not exist.
    """
    target = rules.dead_letter_exchange
    if target is None or (target != DEFAULT_EXCHANGE and target not in exchanges):
        return None
    letter = _recent_letter if len(properties.raw) <= CACHEABLE_BYTES else _letter
    return letter(properties.raw, exchange, routing_key, queue, target, rules.dead_letter_routing_key, reason, now_ms // 1000)


def _letter(
    raw_properties: bytes,
    exchange: str,
    routing_key: str,
    queue: str,
    target: str,
    new_key: str | None,
    reason: DeathReason,
    now_s: int,
) -> DeadLetter:
    properties = Properties(unnumbered(raw_properties))
    headers, fields = _readable(properties)
    keys = routing_keys(routing_key, headers)
    deaths = _with_death(headers.get("x-death"), _death(properties, exchange, keys, queue, reason, now_s))
    fields["x-death"] = encode_value(list(deaths))
    for name, value in (("exchange", exchange), ("queue", queue), ("reason", reason)):
        fields.setdefault(f"x-first-death-{name}", encode_value(value))
    if new_key is not None:
        fields.pop("CC", None)
        keys = (new_key,)
    changed: dict[str, Any] = {**properties.without_headers(), "headers": join_table(fields)}
    changed.pop("expiration", None)
    return DeadLetter(target, keys, {**headers, "x-death": list(deaths)}, encode_properties(changed), deaths, reason)


_recent_letter = lru_cache(LETTERS_KEPT)(_letter)
"""Messages with the same properties and key that die in a queue within the same second have the same letter."""


def _readable(properties: Properties) -> tuple[Mapping[str, FieldValue], dict[str, bytes]]:
    """Return the headers, decoded and as the bytes of each. Headers that cannot be decoded are dropped."""
    try:
        return properties.headers, split_table(properties.raw_headers())
    except FrameError:
        return {}, {}


def _death(properties: Properties, exchange: str, keys: tuple[str, ...], queue: str, reason: DeathReason, now_s: int) -> Death:
    death: Death = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(now_s, UTC),
        "exchange": exchange,
        "routing-keys": list(keys),
    }
    if properties.expiration is not None:
        death["original-expiration"] = properties.expiration
    return death


def _with_death(known: FieldValue, death: Death) -> list[Death]:
    """Add a death to those in an `x-death` header, which has one entry for each queue and reason, with a count."""
    before = [dict(each) for each in known if isinstance(each, Mapping)] if isinstance(known, list) else []
    same = next((one for one in before if (one.get("queue"), one.get("reason")) == (death["queue"], death["reason"])), None)
    if same is None:
        return [death, *before]
    count = same.get("count")
    same["count"] = (count if isinstance(count, int) else 0) + 1
    return [same, *(each for each in before if each is not same)]
