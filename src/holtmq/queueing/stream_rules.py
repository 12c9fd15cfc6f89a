"""The rules of a stream: what its arguments and its policy mean (RabbitMQ, "Streams and Super Streams")."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holtmq.errors import InvalidValueError, PreconditionFailedError
from holtmq.queueing.argument_values import LARGEST, lower, number, policy_number, policy_text, text
from holtmq.queueing.rules import QueueRules
from holtmq.table import FieldValue, describe
from holtmq.topology import Policy, Queue

STREAM = "stream"
REFUSED = (
    "x-message-ttl", "x-expires", "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-dead-letter-strategy", "x-max-priority", "x-single-active-consumer", "x-delivery-limit", "x-queue-mode",
    "x-max-in-memory-length", "x-max-in-memory-bytes", "x-retention",
)  # fmt: skip
"""Arguments of other queues. What they ask for, a stream cannot do."""
AGE = re.compile("([0-9]{1,12})([YMDhms])")
UNITS_MS = {
    "Y": 365 * 24 * 3_600_000,
    "M": 30 * 24 * 3_600_000,
    "D": 24 * 3_600_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}
LARGEST_CHUNK = 1024 * 1024
"""Bytes after which a chunk ends, and with it what retention removes in one piece."""


@dataclass(frozen=True, slots=True)
class StreamRules:
    """How long a stream keeps its messages."""

    max_bytes: int | None = None
    max_age_ms: int | None = None
    chunk_bytes: int = LARGEST_CHUNK

    @classmethod
    def of(cls, queue: Queue, policy: Policy | None = None) -> StreamRules:
        """Combine a stream's arguments with its policy. Of two limits, the lower one applies."""
        own, given = queue.arguments, policy.definition if policy else {}
        if not queue.durable or queue.exclusive or queue.auto_delete:
            raise PreconditionFailedError(
                f"stream {queue.name!r} in vhost {queue.vhost!r} must be durable, and neither exclusive nor auto-delete"
            )
        for name in REFUSED:
            if name in own:
                raise PreconditionFailedError(
                    f"invalid arg {name!r} for queue {queue.name!r} in vhost {queue.vhost!r}: "
                    "expected an argument of streams, got one of other queue types"
                )
        age = text(own, "x-max-age")
        segment = lower(
            number(own, "x-stream-max-segment-size-bytes", most=LARGEST),
            policy_number(given, "stream-max-segment-size-bytes"),
        )
        return cls(
            max_bytes=lower(number(own, "x-max-length-bytes", most=LARGEST), policy_number(given, "max-length-bytes")),
            max_age_ms=lower(None if age is None else parse_age(age, "x-max-age"), _policy_age(policy_text(given, "max-age"))),
            chunk_bytes=LARGEST_CHUNK if segment is None else min(segment, LARGEST_CHUNK),
        )

    @property
    def limits(self) -> bool:
        """Whether retention removes anything."""
        return self.max_bytes is not None or self.max_age_ms is not None

    @property
    def dead_letter_exchange(self) -> None:
        """A stream has no dead letters."""

    @property
    def dead_letter_routing_key(self) -> None:
        """A stream has no dead letters."""


def is_stream(queue: Queue) -> bool:
    return queue.arguments.get("x-queue-type") == STREAM


def rules_of(queue: Queue, policy: Policy | None = None) -> QueueRules | StreamRules:
    """Return the rules of a queue of any type. Raise if an argument is invalid."""
    return StreamRules.of(queue, policy) if is_stream(queue) else QueueRules.of(queue, policy)


def parse_age(value: FieldValue, name: str) -> int:
    """Return a duration such as `7D`, `12h` or `30m` in milliseconds."""
    match = AGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValueError(f"invalid arg {name!r}: expected a number with one of Y, M, D, h, m, s, got {describe(value)}")
    return int(match[1]) * UNITS_MS[match[2]]


def _policy_age(value: str | None) -> int | None:
    """Return the duration of a policy. An invalid one, which only a definitions file can contain, has no effect."""
    match = AGE.fullmatch(value) if value is not None else None
    return None if match is None else int(match[1]) * UNITS_MS[match[2]]
