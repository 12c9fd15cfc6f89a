"""The rules of a queue: what its arguments and its policy mean (RabbitMQ, "Queues": optional arguments).

The broker and the embedded library both read a queue's declaration here, so an argument means the same in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holtmq.errors import InvalidValueError, PreconditionFailedError
from holtmq.table import FieldValue, describe
from holtmq.topology import DEFAULT_EXCHANGE, Policy, Queue

Overflow: TypeAlias = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
OVERFLOWS: tuple[Overflow, ...] = ("drop-head", "reject-publish", "reject-publish-dlx")
QUORUM = "quorum"
QUEUE_TYPES = ("classic", QUORUM)
"""On one node both are the same queue, except that a quorum queue adds `x-delivery-count` to redeliveries."""
HIGHEST_PRIORITY = 255
LONGEST_MS = 2**32 - 1
LARGEST = 2**63 - 1
RETENTION_ARGUMENT = "x-retention"

POLICY_NUMBERS = {
    "message-ttl": (0, LONGEST_MS),
    "expires": (1, LONGEST_MS),
    "max-length": (0, LARGEST),
    "max-length-bytes": (0, LARGEST),
    "delivery-limit": (0, LARGEST),
}
"""The numeric keys of a policy, with the range of each."""


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
        queue_type = _choice(own, "x-queue-type", QUEUE_TYPES)
        _choice(own, "x-queue-mode", ("default", "lazy"))
        if queue_type == QUORUM and (queue.exclusive or not queue.durable):
            raise PreconditionFailedError(f"queue {queue.name!r} of type quorum must be durable and not exclusive")
        overflow = _choice(own, "x-overflow", OVERFLOWS) or _policy_text(given, "overflow")
        rules = cls(
            message_ttl_ms=_lower(_number(own, "x-message-ttl"), _policy_number(given, "message-ttl")),
            expires_ms=_lower(_number(own, "x-expires", least=1), _policy_number(given, "expires")),
            max_length=_lower(_number(own, "x-max-length", most=LARGEST), _policy_number(given, "max-length")),
            max_length_bytes=_lower(
                _number(own, "x-max-length-bytes", most=LARGEST), _policy_number(given, "max-length-bytes")
            ),
            overflow=overflow if overflow in OVERFLOWS else "drop-head",
            dead_letter_exchange=_first(_text(own, "x-dead-letter-exchange"), _policy_text(given, "dead-letter-exchange")),
            dead_letter_routing_key=_first(
                _text(own, "x-dead-letter-routing-key"), _policy_text(given, "dead-letter-routing-key")
            ),
            max_priority=_number(own, "x-max-priority", most=HIGHEST_PRIORITY) or 0,
            is_single_active=_flag(own, "x-single-active-consumer"),
            delivery_limit=_lower(_number(own, "x-delivery-limit", most=LARGEST), _policy_number(given, "delivery-limit")),
            is_quorum=queue_type == QUORUM,
            retention_ms=_number(own, RETENTION_ARGUMENT, most=LARGEST) or 0,
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
    if max_attempts is not None and (not _is_integer(max_attempts) or max_attempts < 1):
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


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(arguments: Mapping[str, FieldValue], name: str, *, least: int = 0, most: int = LONGEST_MS) -> int | None:
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidValueError(f"invalid arg {name!r}: expected an integer from {least} to {most}, got {describe(value)}")
    return value


def _text(arguments: Mapping[str, FieldValue], name: str) -> str | None:
    value = arguments.get(name)
    if name in arguments and not isinstance(value, str):
        raise InvalidValueError(f"invalid arg {name!r}: expected a string, got {describe(value)}")
    return value if isinstance(value, str) else None


def _flag(arguments: Mapping[str, FieldValue], name: str) -> bool:
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise InvalidValueError(f"invalid arg {name!r}: expected true or false, got {describe(value)}")
    return value


def _choice(arguments: Mapping[str, FieldValue], name: str, choices: tuple[str, ...]) -> str | None:
    value = _text(arguments, name)
    if value is not None and value not in choices:
        raise InvalidValueError(f"invalid arg {name!r}: expected one of {', '.join(choices)}, got {describe(value)}")
    return value


def _policy_text(definition: Mapping[str, FieldValue], name: str) -> str | None:
    value = definition.get(name)
    return value if isinstance(value, str) else None


def _policy_number(definition: Mapping[str, FieldValue], name: str) -> int | None:
    """Return a number of a policy. An invalid one, which only a definitions file can contain, has no effect."""
    value, (least, most) = definition.get(name), POLICY_NUMBERS[name]
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _lower(own: int | None, given: int | None) -> int | None:
    return min((limit for limit in (own, given) if limit is not None), default=None)


def _first(own: str | None, given: str | None) -> str | None:
    return own if own is not None else given
