"""Exchange, queue, binding, policy: what a topology is made of. Frozen values, valid from birth, hashable and picklable.

Arguments may be given as any mapping; they are kept as an immutable `Table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

from holtmq.errors import InvalidValueError
from holtmq.table import EMPTY_TABLE, FieldValue, Table, canonical, describe, require_short_string, to_plain
from holtmq.topology.criteria import has_x_criteria

DestinationType: TypeAlias = Literal["queue", "exchange"]
DEFAULT_EXCHANGE = ""
DEFAULT_VHOST = "/"


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where messages are published to. `extra` keeps what else a definitions file said of it."""

    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE
    vhost: str = DEFAULT_VHOST
    extra: Mapping[str, FieldValue] = field(default=EMPTY_TABLE, compare=False)

    def __post_init__(self) -> None:
        require_short_string(self.name, "an exchange's name")
        require_short_string(self.type, "an exchange's type")
        _freeze_tables(self, "arguments", "extra")
        _require_exchange_name(self.arguments.get("alternate-exchange", ""), "alternate-exchange", self.name)

    @property
    def alternate_exchange(self) -> str | None:
        """Where messages go that no binding of this exchange matches; a policy may name one as well."""
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Queue:
    """Where messages wait. `extra` keeps what else a definitions file said of it."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE
    vhost: str = DEFAULT_VHOST
    extra: Mapping[str, FieldValue] = field(default=EMPTY_TABLE, compare=False)

    def __post_init__(self) -> None:
        require_short_string(self.name, "a queue's name")
        _freeze_tables(self, "arguments", "extra")


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A rule of an exchange: which messages go on to which queue or exchange. One structure for every exchange type.

    Its identity, and so its equality, is (vhost, source, destination, routing key, arguments); `created_at` and `metadata`
    ride along, as does `extra`, what else a definitions file said of it. The arguments `x-priority` and `x-message-ttl`
    are settings for the messages that enter a queue by it.
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
        require_short_string(self.source, "a binding's source")
        require_short_string(self.destination, "a binding's destination")
        require_short_string(self.routing_key, "a routing key")
        if self.destination_type not in ("queue", "exchange"):
            raise InvalidValueError(
                f"a binding's destination type must be 'queue' or 'exchange', got {describe(self.destination_type)}"
            )
        if not (self.arguments is self.metadata is self.extra is EMPTY_TABLE):
            _freeze_tables(self, "arguments", "metadata", "extra")
            _require_binding_settings(self)
        # Bindings live in dicts and sets by the hundred thousand; each hash is asked for several times (benchmarks/routing.py).
        object.__setattr__(self, "_hash", hash(self.identity))

    @property
    def identity(self) -> tuple[object, ...]:
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
        return self.destination_type == "queue"

    @property
    def priority(self) -> int | None:
        return self._setting(self.PRIORITY_ARGUMENT)

    @property
    def ttl_ms(self) -> int | None:
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
        # The hash of a string differs from process to process: a pickled binding computes its own anew.
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
        return f"{self.source!r} → {self.destination_type} {self.destination!r} by {self.routing_key!r}{arguments}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Arguments given by pattern: of those that match a name, the one of highest priority applies, whole."""

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
    """A runtime parameter of RabbitMQ's: kept for who asks for it, and for the next export. A global one has neither
    component nor vhost."""

    component: str
    name: str
    value: str
    """As JSON."""
    vhost: str = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.component, self.vhost, self.name

    @property
    def is_global(self) -> bool:
        return not self.component


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
