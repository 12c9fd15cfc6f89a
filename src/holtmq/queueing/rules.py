"""What the arguments of a queue, and the policies that fit its name, ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holtmq.errors import InvalidValueError, PreconditionFailedError
from holtmq.table import FieldValue, describe
from holtmq.topology import Policy, Queue

OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
QUEUE_TYPES = ("classic", "quorum")
"""Accepted for the sake of clients that ask for one; on one node they are the same queue."""
HIGHEST_PRIORITY = 255
LONGEST_MS = 2**32 - 1


POLICY_NUMBERS = {
    "message-ttl": (0, LONGEST_MS),
    "expires": (1, LONGEST_MS),
    "max-length": (0, 2**63 - 1),
    "max-length-bytes": (0, 2**63 - 1),
    "delivery-limit": (0, 2**63 - 1),
}
"""What a policy may set, and from where to where."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    """How long it may be unused before it goes."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    is_single_active: bool = False
    delivery_limit: int | None = None

    @classmethod
    def of(cls, queue: Queue, policy: Policy | None = None) -> QueueRules:
        """A queue's own arguments and its policy's; where both set a limit, the lower one counts."""
        own, given = queue.arguments, policy.definition if policy else {}
        _require_choice(own, "x-queue-type", QUEUE_TYPES)
        _require_choice(own, "x-queue-mode", ("default", "lazy"))
        if own.get("x-queue-type") == "quorum" and (queue.exclusive or not queue.durable):
            raise PreconditionFailedError(f"queue {queue.name!r} of type quorum must be durable and not exclusive")
        rules = cls(
            message_ttl_ms=_lower(_number(own, "x-message-ttl"), _given(given, "message-ttl")),
            expires_ms=_lower(_number(own, "x-expires", least=1), _given(given, "expires")),
            max_length=_lower(_number(own, "x-max-length", most=2**63 - 1), _given(given, "max-length")),
            max_length_bytes=_lower(_number(own, "x-max-length-bytes", most=2**63 - 1), _given(given, "max-length-bytes")),
            overflow=_require_choice(own, "x-overflow", OVERFLOWS) or _text_or_none(given, "overflow") or "drop-head",
            dead_letter_exchange=_first(_text(own, "x-dead-letter-exchange"), _text_or_none(given, "dead-letter-exchange")),
            dead_letter_routing_key=_first(
                _text(own, "x-dead-letter-routing-key"), _text_or_none(given, "dead-letter-routing-key")
            ),
            max_priority=_number(own, "x-max-priority", most=HIGHEST_PRIORITY) or 0,
            is_single_active=_flag(own, "x-single-active-consumer"),
            delivery_limit=_lower(_number(own, "x-delivery-limit", most=2**63 - 1), _given(given, "delivery-limit")),
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


def parse_expiration(text: str | None) -> int | None:
    """The time to live in a message's `expiration`, which AMQP has as a text of milliseconds."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) > LONGEST_MS:
        raise PreconditionFailedError(
            f"invalid expiration {text[:40]!r}: expected a number of milliseconds from 0 to {LONGEST_MS}"
        )
    return int(text)


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


def _require_choice(arguments: Mapping[str, FieldValue], name: str, choices: tuple[str, ...]) -> str | None:
    value = _text(arguments, name)
    if value is not None and value not in choices:
        raise InvalidValueError(f"invalid arg {name!r}: expected one of {', '.join(choices)}, got {describe(value)}")
    return value


def _text_or_none(definition: Mapping[str, FieldValue], name: str) -> str | None:
    value = definition.get(name)
    return value if isinstance(value, str) else None


def _given(definition: Mapping[str, FieldValue], name: str) -> int | None:
    """A number of a policy; one that makes no sense, as a file may have it, is as good as none."""
    value, (least, most) = definition.get(name), POLICY_NUMBERS[name]
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _lower(own: int | None, given: int | None) -> int | None:
    return min((limit for limit in (own, given) if limit is not None), default=None)


def _first(own: str | None, given: str | None) -> str | None:
    return own if own is not None else given
