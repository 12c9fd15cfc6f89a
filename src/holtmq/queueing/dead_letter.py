"""What becomes of a message that dies in a queue: the headers that tell its story, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holtmq.errors import FrameError
from holtmq.queueing.rules import QueueRules
from holtmq.routing.router import routing_keys
from holtmq.table import FieldValue
from holtmq.wire.content import Properties, encode_properties
from holtmq.wire.tables import encode_value, join_table, split_table

REJECTED = "rejected"
Death = dict[str, FieldValue]


class Letter(NamedTuple):
    """A dead message, ready to be published once more."""

    routing_keys: tuple[str, ...]
    headers: Mapping[str, FieldValue]
    raw_properties: bytes
    deaths: Sequence[Death]
    """Newest first, this one included."""
    reason: str

    def goes_round(self, queue: str) -> bool:
        """Whether it comes to a queue where it has died before, and nobody rejected it on the way: it would never end."""
        if self.reason == REJECTED:
            return False
        for place, death in enumerate(self.deaths):
            if death.get("queue") == queue:
                return all(earlier.get("reason") != REJECTED for earlier in self.deaths[: place + 1])
        return False


def write_letter(message: Any, queue: str, rules: QueueRules, reason: str, now_ms: int) -> Letter:
    """The message as it leaves a queue that it died in: `x-death` tells where it died, why and how often."""
    properties = message.properties
    headers, fields = _readable(properties)
    keys = routing_keys(message.origin.routing_key, headers)
    deaths = _with_death(message, headers.get("x-death"), queue, reason, keys, now_ms)
    fields["x-death"] = encode_value(list(deaths))
    for name, value in (("exchange", message.origin.exchange), ("queue", queue), ("reason", reason)):
        fields.setdefault(f"x-first-death-{name}", encode_value(value))
    if rules.dead_letter_routing_key is not None:
        fields.pop("CC", None)
        keys = (rules.dead_letter_routing_key,)
    else:
        keys = (message.origin.routing_key, *(key for key in keys if key != message.origin.routing_key))
    changed: dict[str, Any] = {**properties.without_headers(), "headers": join_table(fields)}
    changed.pop("expiration", None)
    return Letter(keys, {**headers, "x-death": list(deaths)}, encode_properties(changed), deaths, reason)


def _readable(properties: Properties) -> tuple[Mapping[str, FieldValue], dict[str, bytes]]:
    """The headers, and the bytes of each. What no peer could read is not carried on: nobody looked at it before."""
    try:
        return properties.headers, split_table(properties.raw_headers())
    except FrameError:
        return {}, {}


def _with_death(message: Any, known: FieldValue, queue: str, reason: str, keys: tuple[str, ...], now_ms: int) -> list[Death]:
    before = [dict(death) for death in known if isinstance(death, Mapping)] if isinstance(known, list) else []
    same = next((death for death in before if death.get("queue") == queue and death.get("reason") == reason), None)
    if same is not None:
        count = same.get("count")
        same["count"] = (count if isinstance(count, int) else 0) + 1
        return [same, *(death for death in before if death is not same)]
    death: Death = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(now_ms // 1000, UTC),
        "exchange": message.origin.exchange,
        "routing-keys": [message.origin.routing_key, *(key for key in keys if key != message.origin.routing_key)],
    }
    if message.properties.expiration is not None:
        death["original-expiration"] = message.properties.expiration
    return [death, *before]
