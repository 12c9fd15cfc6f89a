"""The rules of a queue: what its arguments and its policy mean (RabbitMQ, "Queues": optional arguments).

The broker and the embedded library both read a queue's declaration here, so an argument means the same in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holtmq.errors import InvalidValueError, PreconditionFailedError
from holtmq.queueing.argument_values import (
    LARGEST,
    choice,
    first,
    flag,
    is_integer,
    lower,
    number,
    policy_number,
    policy_text,
    text,
)
from holtmq.table import FieldValue, describe
from holtmq.topology import DEFAULT_EXCHANGE, Policy, Queue

Overflow: TypeAlias = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
OVERFLOWS: tuple[Overflow, ...] = ("drop-head", "reject-publish", "reject-publish-dlx")
QUORUM = "quorum"
QUEUE_TYPES = ("classic", QUORUM)
"""On one node both are the same queue, except that a quorum queue adds `x-delivery-count` to redeliveries."""
HIGHEST_PRIORITY = 255
RETENTION_ARGUMENT = "x-retention"


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The limits and the behaviour of one queue."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    """Idle time after which the queue is deleted."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    is_single_active: bool = False
    delivery_limit: int | None = None
    """Number of times a message may return to the queue; the next return dead-letters it."""
    is_quorum: bool = False
    retention_ms: int = 0
    """Time for which the embedded library keeps acknowledged messages. The broker keeps none."""

    @classmethod
    def of(cls, queue: Queue, policy: Policy | None = None) -> QueueRules:
        """Combine a queue's arguments with its policy. Of two limits, the lower one applies."""
        own, given = queue.arguments, policy.definition if policy else {}
        queue_type = choice(own, "x-queue-type", QUEUE_TYPES)
        choice(own, "x-queue-mode", ("default", "lazy"))
        if queue_type == QUORUM and (queue.exclusive or not queue.durable):
            raise PreconditionFailedError(f"queue {queue.name!r} of type quorum must be durable and not exclusive")
        overflow = choice(own, "x-overflow", OVERFLOWS) or policy_text(given, "overflow")
        rules = cls(
            message_ttl_ms=lower(number(own, "x-message-ttl"), policy_number(given, "message-ttl")),
            expires_ms=lower(number(own, "x-expires", least=1), policy_number(given, "expires")),
            max_length=lower(number(own, "x-max-length", most=LARGEST), policy_number(given, "max-length")),
            max_length_bytes=lower(number(own, "x-max-length-bytes", most=LARGEST), policy_number(given, "max-length-bytes")),
            overflow=overflow if overflow in OVERFLOWS else "drop-head",
            dead_letter_exchange=first(text(own, "x-dead-letter-exchange"), policy_text(given, "dead-letter-exchange")),
            dead_letter_routing_key=first(
                text(own, "x-dead-letter-routing-key"), policy_text(given, "dead-letter-routing-key")
            ),
            max_priority=number(own, "x-max-priority", most=HIGHEST_PRIORITY) or 0,
            is_single_active=flag(own, "x-single-active-consumer"),
            delivery_limit=lower(number(own, "x-delivery-limit", most=LARGEST), policy_number(given, "delivery-limit")),
            is_quorum=queue_type == QUORUM,
            retention_ms=number(own, RETENTION_ARGUMENT, most=LARGEST) or 0,
        )
        if rules.dead_letter_exchange is None and "x-dead-letter-routing-key" in own:
            raise PreconditionFailedError(
                f"invalid arg 'x-dead-letter-routing-key' for queue {queue.name!r} in vhost {queue.vhost!r}: "
                "expected 'x-dead-letter-exchange' as well, got none"
            )
        return rules

    @property
    def limits_length(self) -> bool:
        return self.max_length is not None or self.max_length_bytes is not None

    def is_exhausted(self, returns: int) -> bool:
        """Whether a message that has returned to the queue this many times must not be delivered again."""
        return self.delivery_limit is not None and returns > self.delivery_limit


def queue_arguments(
    arguments: Mapping[str, FieldValue] | None,
    *,
    max_length: int | None = None,
    max_length_bytes: int | None = None,
    max_attempts: int | None = None,
    max_priority: int | None = None,
    ttl_ms: int | None = None,
    dead_letter_queue: str | None = None,
    retention_s: float = 0,
) -> dict[str, FieldValue]:
    """Translate the keywords of `declare_queue` into AMQP arguments, which keep their AMQP meaning."""
    if max_attempts is not None and (not is_integer(max_attempts) or max_attempts < 1):
        raise InvalidValueError(f"max_attempts must be an integer of at least 1, got {describe(max_attempts)}")
    is_limited = max_length is not None or max_length_bytes is not None
    given: dict[str, FieldValue] = {
        "x-max-length": max_length,
        "x-max-length-bytes": max_length_bytes,
        "x-overflow": "reject-publish" if is_limited and "x-overflow" not in (arguments or {}) else None,
        "x-delivery-limit": None if max_attempts is None else max_attempts - 1,
        "x-max-priority": max_priority,
        "x-message-ttl": ttl_ms,
        "x-dead-letter-exchange": DEFAULT_EXCHANGE if dead_letter_queue is not None else None,
        "x-dead-letter-routing-key": dead_letter_queue,
        RETENTION_ARGUMENT: round(retention_s * 1000) or None,
    }
    return {**(arguments or {}), **{name: value for name, value in given.items() if value is not None}}
