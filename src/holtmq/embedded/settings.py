"""What a queue was declared with, as the embedded library reads it: AMQP's own arguments, so that a broker reads the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holtmq.errors import InvalidValueError
from holtmq.table import FieldValue, describe

RETENTION_ARGUMENT = "x-retention"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    max_length: int | None = None
    """How many ready messages there may be; a put beyond is refused."""
    max_attempts: int | None = None
    """How often a message may be claimed before it is dead."""
    ttl_ms: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    retention_ms: int = 0
    """How long a message that is done is kept to be looked at."""

    @classmethod
    def of(cls, arguments: Mapping[str, FieldValue]) -> QueueSettings:
        return cls(
            _number(arguments, "x-max-length"),
            _number(arguments, "x-delivery-limit"),
            _number(arguments, "x-message-ttl"),
            _text(arguments, "x-dead-letter-exchange"),
            _text(arguments, "x-dead-letter-routing-key"),
            _number(arguments, RETENTION_ARGUMENT) or 0,
        )


def queue_arguments(
    arguments: Mapping[str, FieldValue] | None,
    *,
    max_length: int | None,
    max_attempts: int | None,
    ttl_ms: int | None,
    dead_letter_queue: str | None,
    retention_s: float,
) -> dict[str, FieldValue]:
    """The friendly words of `declare_queue` as AMQP's arguments."""
    given: dict[str, FieldValue] = {
        "x-max-length": max_length,
        "x-overflow": "reject-publish" if max_length is not None else None,
        "x-delivery-limit": max_attempts,
        "x-message-ttl": ttl_ms,
        "x-dead-letter-exchange": "" if dead_letter_queue is not None else None,
        "x-dead-letter-routing-key": dead_letter_queue,
        RETENTION_ARGUMENT: round(retention_s * 1000) or None,
    }
    made = {**(arguments or {}), **{name: value for name, value in given.items() if value is not None}}
    QueueSettings.of(made)
    return made


def _number(arguments: Mapping[str, FieldValue], name: str) -> int | None:
    value = arguments.get(name)
    if name in arguments and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise InvalidValueError(f"queue argument {name!r} must be a non-negative integer, got {describe(value)}")
    return value if isinstance(value, int) else None


def _text(arguments: Mapping[str, FieldValue], name: str) -> str | None:
    value = arguments.get(name)
    if name in arguments and not isinstance(value, str):
        raise InvalidValueError(f"queue argument {name!r} must be a text, got {describe(value)}")
    return value if isinstance(value, str) else None
