"""The parts of a topology: exchange, queue, binding, policy. Frozen, validated, hashable and picklable values.

Arguments can be any mapping; they are stored as an immutable `Table`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

from holtmq.errors import InvalidValueError
from holtmq.table import EMPTY_TABLE, FieldValue, Table, canonical, describe, require_short_string, to_plain
from holtmq.topology.criteria import has_x_criteria

DestinationType: TypeAlias = Literal["queue", "exchange"]
DEFAULT_EXCHANGE = ""
DEFAULT_VHOST = "/"
MAX_NESTING = 100
"""Maximum depth of a parameter's value. The serializer of the HTTP API supports 254 levels in all."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The declaration of an exchange. `extra` holds the other fields of its entry in a definitions file."""

    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE
    vhost: str = DEFAULT_VHOST
    extra: Mapping[str, FieldValue] = field(default=EMPTY_TABLE, compare=False)

    def __post_init__(self) -> None:
        require_short_string(self.name, "the name of an exchange")
        require_short_string(self.type, "the type of an exchange")
        _freeze_tables(self, "arguments", "extra")
        _require_exchange_name(self.arguments.get("alternate-exchange", ""), "alternate-exchange", self.name)

    @property
    def alternate_exchange(self) -> str | None:
        """The exchange for messages that no binding matches, if the arguments name one; a policy can also set it."""
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Queue:
    """The declaration of a queue. `extra` holds the other fields of its entry in a definitions file."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE
    vhost: str = DEFAULT_VHOST
    extra: Mapping[str, FieldValue] = field(default=EMPTY_TABLE, compare=False)

    def __post_init__(self) -> None:
        require_short_string(self.name, "the name of a queue")
        _freeze_tables(self, "arguments", "extra")

    @property
    def outlives_broker(self) -> bool:
        """Whether the queue survives a restart. An exclusive one is deleted with its connection, durable or not."""
        return self.durable and not self.exclusive


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A rule that routes messages from an exchange to a queue or another exchange; the same for every exchange type.

    Two bindings are equal if vhost, source, destination, routing key and arguments are equal. `created_at`, `metadata` and
    `extra`, which holds the other fields of its entry in a definitions file, do not count. The arguments `x-priority` and
    `x-message-ttl` set the priority and TTL of messages that enter a queue through the binding.
    """

    PRIORITY_ARGUMENT: ClassVar = "x-priority"
    TTL_ARGUMENT: ClassVar = "x-message-ttl"

    source: str
    destination: str
    routing_key: str = ""
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE
    destination_type: DestinationType = "queue"
    vhost: str = DEFAULT_VHOST
    created_at: datetime | None = None
    metadata: Mapping[str, FieldValue] = EMPTY_TABLE
    extra: Mapping[str, FieldValue] = EMPTY_TABLE
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_short_string(self.source, "the source of a binding")
        require_short_string(self.destination, "the destination of a binding")
        require_short_string(self.routing_key, "a routing key")
        if self.destination_type not in ("queue", "exchange"):
            raise InvalidValueError(
                f"the destination type of a binding must be 'queue' or 'exchange', got {describe(self.destination_type)}"
            )
        if not (self.arguments is self.metadata is self.extra is EMPTY_TABLE):
            _freeze_tables(self, "arguments", "metadata", "extra")
            _require_binding_settings(self)
        # Dictionaries and sets hold hundreds of thousands of bindings and use each hash several times (benchmarks/routing.py).
        object.__setattr__(self, "_hash", hash(self.identity))

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields that decide equality, in hashable form."""
        return (
            self.vhost,
            self.source,
            self.destination_type,
            self.destination,
            self.routing_key,
            canonical(self.arguments),
        )

    @property
    def is_to_queue(self) -> bool:
        """Whether the destination is a queue."""
        return self.destination_type == "queue"

    @property
    def priority(self) -> int | None:
        """The priority for messages that have none (`x-priority`)."""
        return self._setting(self.PRIORITY_ARGUMENT)

    @property
    def ttl_ms(self) -> int | None:
        """The TTL for messages that have none, in milliseconds (`x-message-ttl`)."""
        return self._setting(self.TTL_ARGUMENT)

    def _setting(self, name: str) -> int | None:
        value = self.arguments.get(name)
        return value if isinstance(value, int) and not has_x_criteria(self.arguments) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Binding):
            return NotImplemented
        return self._hash == other._hash and self.identity == other.identity

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # The hash of a string differs between processes: an unpickled binding computes its hash again.
        return Binding, (
            self.source,
            self.destination,
            self.routing_key,
            self.arguments,
            self.destination_type,
            self.vhost,
            self.created_at,
            self.metadata,
            self.extra,
        )

    def __str__(self) -> str:
        arguments = f" {to_plain(self.arguments)}" if self.arguments else ""
        return f"{self.source!r} → {self.destination_type} {self.destination!r} with key {self.routing_key!r}{arguments}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Arguments for queues and exchanges whose name matches a pattern; of several policies, only the one with the highest
    priority applies."""

    name: str
    pattern: str
    definition: Mapping[str, FieldValue] = EMPTY_TABLE
    apply_to: str = "all"
    priority: int = 0
    vhost: str = DEFAULT_VHOST
    extra: Mapping[str, FieldValue] = field(default=EMPTY_TABLE, compare=False)

    def __post_init__(self) -> None:
        _freeze_tables(self, "definition", "extra")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A runtime parameter of RabbitMQ, which HoltMQ stores but does not use. A global one has no component and no vhost."""

    component: str
    name: str
    value: str
    """The value as JSON text."""
    vhost: str = ""

    @classmethod
    def of(cls, component: str, name: str, value: object, vhost: str = "") -> Parameter:
        """Return a parameter with a value from JSON. Raise InvalidValueError if it is nested too deeply to be listed."""
        level = [value]
        for _ in range(MAX_NESTING):
            level = [child for each in level for child in _children(each)]
        if level:
            raise InvalidValueError(f"parameter {name!r}: expected a value of at most {MAX_NESTING} levels, got more")
        return cls(component, name, json.dumps(value), vhost)

    @property
    def identity(self) -> tuple[str, str, str]:
        """Component, vhost and name."""
        return self.component, self.vhost, self.name

    @property
    def is_global(self) -> bool:
        """Whether it is a global parameter."""
        return not self.component


def _children(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _freeze_tables(entity: object, *names: str) -> None:
    for name in names:
        fields = getattr(entity, name)
        if type(fields) is not Table:
            object.__setattr__(entity, name, Table.of(fields))


def _require_exchange_name(value: FieldValue, argument: str, exchange: str) -> None:
    if not isinstance(value, str):
        raise InvalidValueError(
            f"argument {argument!r} of exchange {exchange!r} must be the name of an exchange, got {describe(value)}"
        )


def _require_binding_settings(binding: Binding) -> None:
    if has_x_criteria(binding.arguments):
        return
    for name, limit in ((Binding.PRIORITY_ARGUMENT, 255), (Binding.TTL_ARGUMENT, 2**32 - 1)):
        value = binding.arguments.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
            raise InvalidValueError(f"binding argument {name!r} must be an integer from 0 to {limit}, got {describe(value)}")
