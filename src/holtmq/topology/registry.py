"""The exchanges, queues and bindings of one vhost, and the rules for declaring and deleting them.

Every change is incremental: its cost does not grow with the number of bindings. The registry decides what else a deletion
removes (the bindings of a queue, auto-delete exchanges without bindings) and reports it as a `Removal`.

A binding is in two indexes, by its source and by its destination. A deletion takes it out of one of them only, which is quick
however many bindings an exchange or a queue has. What is in a single index is a *ghost*: it does not exist for anybody, and is
swept one by one, in steps between which anything may be declared and deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from holtmq.errors import (
    EXCHANGE_UNBIND,
    QUEUE_UNBIND,
    AccessRefusedError,
    BindingArgumentsMismatchError,
    NotFoundError,
    PreconditionFailedError,
)
from holtmq.regular_expression import RegularExpression, stored_expression
from holtmq.table import FieldValue, Table, canonical, describe, to_plain
from holtmq.topology.entities import DEFAULT_EXCHANGE, Binding, DestinationType, Exchange, Policy, Queue
from holtmq.topology.topology import Topology

K = TypeVar("K")
Ends: TypeAlias = tuple[str, str, DestinationType, str]
"""The vhost and the source of bindings, and the type and name of their destination."""

RESERVED_PREFIX = "amq."
PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
QUEUE_ARGUMENTS = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
    "x-expires",
    "x-max-age",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-queue-mode",
    "x-queue-type",
    "x-single-active-consumer",
    "x-stream-max-segment-size-bytes",
)
"""The queue arguments that a redeclaration must repeat; others are ignored."""


@dataclass(slots=True)
class Removal:
    """Everything that one change removed, in the order of removal."""

    bindings: list[Binding] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    """The ends of the bindings to removed exchanges and queues: of these, all bindings are gone."""

    def __bool__(self) -> bool:
        return bool(self.bindings or self.exchanges or self.queues)

    @property
    def is_unbinding(self) -> bool:
        """Whether nothing but bindings was removed. Those of exchanges and queues need not be removed one by one."""
        return not (self.exchanges or self.queues)


class Registry:
    """The contents of one vhost. It always has the predeclared exchanges; the default exchange is implicit."""

    def __init__(self, vhost: str, policies: Iterable[Policy] = ()) -> None:
        self.vhost = vhost
        self.exchanges: dict[str, Exchange] = {name: Exchange(name, type_, vhost=vhost) for name, type_ in PREDECLARED.items()}
        self.queues: dict[str, Queue] = {}
        self.set_policies(policies)
        self._outgoing: dict[str, dict[Binding, Binding]] = {}
        self._incoming: dict[tuple[DestinationType, str], dict[Binding, Binding]] = {}
        self._links: dict[str, dict[Binding, Binding]] = {}
        self._unswept: dict[int, Removal] = {}
        """Removals whose bindings may still be in an index."""
        self._ghosts_from: dict[str, int] = {}
        """Number of ghosts among the bindings of a source."""

    @classmethod
    def of(cls, topology: Topology, vhost: str) -> Registry:
        """Return the registry of a vhost of a topology.

        Bindings with a missing end are skipped: RabbitMQ exports the bindings of exclusive queues and internal exchanges
        without these queues and exchanges.
        """
        registry = cls(vhost, (policy for policy in topology.policies if policy.vhost == vhost))
        registry.exchanges.update((exchange.name, exchange) for exchange in topology.exchanges if exchange.vhost == vhost)
        registry.queues.update((queue.name, queue) for queue in topology.queues if queue.vhost == vhost)
        for binding in topology.bindings:
            if binding.vhost == vhost and registry.has_ends(binding):
                registry.add_binding(binding)
        return registry

    def to_topology(self) -> Topology:
        """Return the current state as a frozen value, without the predeclared exchanges."""
        return Topology(
            exchanges=tuple(exchange for exchange in self.exchanges.values() if exchange.name not in PREDECLARED),
            queues=tuple(self.queues.values()),
            bindings=tuple(self.bindings()),
            policies=self.policies,
        )

    def exchange(self, name: str) -> Exchange:
        """Return an exchange; raise NotFoundError if it does not exist."""
        try:
            return self.exchanges[name]
        except KeyError:
            raise NotFoundError(f"no exchange {name!r} in vhost {self.vhost!r}") from None

    def bindings(self) -> list[Binding]:
        """Return all bindings."""
        return [binding for source in self._outgoing for binding in self.bindings_from(source)]

    def bindings_from(self, source: str) -> Collection[Binding]:
        """Return the bindings with this source."""
        return self._real(self._outgoing.get(source, {}))

    def bindings_to(self, destination_type: DestinationType, destination: str) -> Collection[Binding]:
        """Return the bindings with this destination."""
        return self._real(self._incoming.get((destination_type, destination), {}))

    def links_from(self, source: str) -> Collection[Binding]:
        """Return the bindings of an exchange to other exchanges, without a search among its bindings to queues."""
        return self._real(self._links.get(source, {}))

    def _real(self, index: dict[Binding, Binding]) -> Collection[Binding]:
        return [binding for binding in index if self.is_real(binding)] if self._unswept else index.keys()

    def has_binding(self, binding: Binding) -> bool:
        """Return whether there is an equal binding."""
        return self._bound(binding) is not None

    def _bound(self, binding: Binding) -> Binding | None:
        bound = self._outgoing.get(binding.source, {}).get(binding)
        return bound if bound is not None and self.is_real(bound) else None

    def _count_from(self, source: str) -> int:
        return len(self._outgoing.get(source, ())) - self._ghosts_from.get(source, 0)

    @property
    def has_ghosts(self) -> bool:
        """Whether bindings of deleted exchanges and queues may still be in an index."""
        return bool(self._unswept)

    def is_real(self, binding: Binding) -> bool:
        """Return whether a binding from an index exists, and is not a ghost."""
        place = (binding.destination_type, binding.destination)
        return (
            self._incoming.get(place, {}).get(binding) is binding
            and self._outgoing.get(binding.source, {}).get(binding) is binding
        )

    def alternate_exchange(self, exchange: Exchange) -> tuple[str | None, Policy | None]:
        """Return the alternate exchange of an exchange, and the policy that sets it if its arguments do not."""
        if exchange.alternate_exchange is not None:
            return exchange.alternate_exchange, None
        for pattern, policy in self._exchange_policies:
            if pattern.matches(exchange.name):
                name = policy.definition.get("alternate-exchange")
                return (name, policy) if isinstance(name, str) else (None, None)
        return None, None

    def resolve_policies(self, topology: Topology) -> Topology:
        """Return a topology with the same routes in this vhost, and without policies: arguments replace them."""
        here = [self._with_alternate(exchange) for exchange in self.exchanges.values()]
        elsewhere = [exchange for exchange in topology.exchanges if exchange.vhost != self.vhost]
        return replace(topology, exchanges=(*here, *elsewhere), policies=())

    def _with_alternate(self, exchange: Exchange) -> Exchange:
        alternate, policy = self.alternate_exchange(exchange)
        if policy is None:
            return exchange
        return replace(exchange, arguments=Table.of({**exchange.arguments, "alternate-exchange": alternate}))

    def set_policies(self, policies: Iterable[Policy]) -> None:
        """Replace all policies."""
        self.policies = tuple(policies)
        self._exchange_policies = _by_priority(self.policies, ("all", "exchanges"))
        self._queue_policies = _by_priority(self.policies, ("all", "queues", "classic_queues", "quorum_queues"))
        self._matched_policies: dict[str, Policy | None] = {}

    def queue_policy(self, queue: str) -> Policy | None:
        """Return the policy that applies to a queue with this name, or None. The name of a queue is matched once."""
        if queue in self._matched_policies:
            return self._matched_policies[queue]
        policy = next((policy for pattern, policy in self._queue_policies if pattern.matches(queue)), None)
        if queue in self.queues:
            self._matched_policies[queue] = policy
        return policy

    def declare_exchange(self, exchange: Exchange) -> bool:
        """Add an exchange; return False if an equal one exists."""
        refuse_default_exchange(exchange.name)
        current = self.exchanges.get(exchange.name)
        if current is not None:
            self._require_equal_exchange(exchange, current)
            return False
        refuse_reserved_name(exchange.name, "exchange")
        self.exchanges[exchange.name] = exchange
        return True

    def declare_queue(self, queue: Queue) -> bool:
        """Add a queue; return False if an equal one exists. Names that start with `amq.` are reserved: see `adopt_queue`."""
        current = self.queues.get(queue.name)
        if current is not None:
            self._require_equal_queue(queue, current)
            return False
        refuse_reserved_name(queue.name, "queue")
        return self.adopt_queue(queue)

    def adopt_queue(self, queue: Queue) -> bool:
        """Add a queue whose name may be reserved: one that the server named, or that a file restores."""
        self.queues[queue.name] = queue
        return True

    def require_ends(self, binding: Binding) -> None:
        """Raise an error if the source or destination of a binding does not exist or is the default exchange."""
        refuse_default_exchange(binding.source)
        self.exchange(binding.source)
        if binding.destination_type == "exchange":
            refuse_default_exchange(binding.destination)
            self.exchange(binding.destination)
        elif binding.destination not in self.queues:
            raise NotFoundError(f"no queue {binding.destination!r} in vhost {self.vhost!r}")

    def has_ends(self, binding: Binding) -> bool:
        """Return whether the source and the destination of a binding exist."""
        destinations = self.queues if binding.destination_type == "queue" else self.exchanges
        return binding.source in self.exchanges and binding.destination in destinations

    def add_binding(self, binding: Binding) -> bool:
        """Add a binding whose source and destination exist; return False if an equal one exists. See `ghost_of`."""
        outgoing = self._outgoing.setdefault(binding.source, {})
        if binding in outgoing:
            return False
        outgoing[binding] = binding
        incoming = self._incoming.setdefault((binding.destination_type, binding.destination), {})
        incoming.pop(binding, None)  # a ghost, which would remain the key
        incoming[binding] = binding
        if binding.destination_type == "exchange":
            self._links.setdefault(binding.source, {})[binding] = binding
        return True

    def ghost_of(self, binding: Binding) -> Binding | None:
        """Return the ghost that must be swept before this binding can be added, if there is one."""
        if not self._unswept:
            return None
        bound = self._outgoing.get(binding.source, {}).get(binding)
        return bound if bound is not None and not self.is_real(bound) else None

    def unbind(self, binding: Binding, *, strict: bool = True) -> Removal:
        """Remove a binding; do nothing if it does not exist.

        If `strict`, raise BindingArgumentsMismatchError if the same source, destination and key are bound with other arguments.
        """
        refuse_default_exchange(binding.source)
        removal, bound = Removal(), self._bound(binding)
        if bound is not None:
            _discard(self._incoming, (bound.destination_type, bound.destination), bound)
            self._let_go([bound], removal)
            del removal.ends[0]  # there may be others between the two
        elif strict:
            self._refuse_other_arguments(binding)
        return removal

    def delete_queue(self, name: str) -> Removal:
        """Remove a queue and its bindings; do nothing if it does not exist."""
        removal, queue = Removal(), self.queues.pop(name, None)
        if queue is not None:
            self._matched_policies.pop(name, None)
            removal.queues.append(queue)
            self._let_go(self._cut_off("queue", name), removal)
        return removal

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> Removal:
        """Remove an exchange and the bindings from and to it; do nothing if it does not exist."""
        refuse_default_exchange(name)
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefusedError(f"deletion of system exchange {name!r} in vhost {self.vhost!r} not allowed")
        count = self._count_from(name)
        if if_unused and count:
            raise PreconditionFailedError(
                f"exchange {name!r} in vhost {self.vhost!r} in use: expected no bindings, it has {count}"
            )
        removal = Removal()
        if name in self.exchanges:
            self._let_go(self._drop_exchange(name, removal), removal)
        return removal

    def _drop_exchange(self, name: str, removal: Removal) -> list[Binding]:
        """Remove an exchange and all bindings from it. Return those to it, which are ghosts from now on."""
        removal.exchanges.append(self.exchanges.pop(name))
        removal.bindings += self.bindings_from(name)
        for index in (self._outgoing, self._links, self._ghosts_from):
            index.pop(name, None)
        return self._cut_off("exchange", name)

    def _cut_off(self, destination_type: DestinationType, destination: str) -> list[Binding]:
        """Make ghosts of all bindings to a destination, and return them."""
        ghosts = list(self.bindings_to(destination_type, destination))
        self._incoming.pop((destination_type, destination), None)
        return ghosts

    def _let_go(self, ghosts: list[Binding], removal: Removal) -> None:
        """Note that bindings to one destination are ghosts now. Remove the auto-delete exchanges that lost their last one."""
        self._unswept[id(removal)] = removal
        counts, pending = self._ghosts_from, [ghosts]
        while pending:
            ghosts = [ghost for ghost in pending.pop() if ghost.source in self._outgoing]  # others went with their source
            removal.bindings += ghosts
            for ghost in ghosts:
                counts[ghost.source] = counts.get(ghost.source, 0) + 1
            for source in {ghost.source: None for ghost in ghosts}:
                removal.ends.append((self.vhost, source, ghosts[0].destination_type, ghosts[0].destination))
                exchange = self.exchanges.get(source)
                if exchange is not None and exchange.auto_delete and not self._count_from(source):
                    pending.append(self._drop_exchange(source, removal))

    def sweep(self, ghost: Binding) -> bool:
        """Take a ghost out of the indexes. Return whether it was still among the bindings of its source."""
        _discard(self._incoming, (ghost.destination_type, ghost.destination), ghost)
        _discard(self._links, ghost.source, ghost)
        if not _discard(self._outgoing, ghost.source, ghost):
            return False
        self._ghosts_from[ghost.source] -= 1
        if not self._ghosts_from[ghost.source]:
            del self._ghosts_from[ghost.source]
        return True

    def swept(self, removal: Removal) -> None:
        """Note that all bindings of a removal were swept."""
        self._unswept.pop(id(removal), None)

    def _refuse_other_arguments(self, binding: Binding) -> None:
        for other in self.bindings_to(binding.destination_type, binding.destination):
            if other.source == binding.source and other.routing_key == binding.routing_key:
                raise BindingArgumentsMismatchError(
                    f"binding arguments do not match: got {to_plain(binding.arguments)}, "
                    f"bound with {to_plain(other.arguments)}",
                    method=QUEUE_UNBIND if binding.destination_type == "queue" else EXCHANGE_UNBIND,
                )

    def _require_equal_exchange(self, wanted: Exchange, current: Exchange) -> None:
        what = f"exchange {wanted.name!r} in vhost {self.vhost!r}"
        _require_equal_fields(wanted, current, ("type", "durable", "auto_delete", "internal"), what)
        _require_equal_arguments(wanted.arguments, current.arguments, ("alternate-exchange",), what)

    def _require_equal_queue(self, wanted: Queue, current: Queue) -> None:
        what = f"queue {wanted.name!r} in vhost {self.vhost!r}"
        _require_equal_fields(wanted, current, ("durable", "auto_delete"), what)
        _require_equal_arguments(wanted.arguments, current.arguments, QUEUE_ARGUMENTS, what)


def refuse_default_exchange(name: str) -> None:
    """Raise AccessRefusedError if the name is that of the default exchange."""
    if name == DEFAULT_EXCHANGE:
        raise AccessRefusedError("operation not permitted on the default exchange")


def refuse_reserved_name(name: str, kind: str) -> None:
    """Raise AccessRefusedError if the name starts with `amq.`."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefusedError(f"{kind} name {name!r} contains reserved prefix 'amq.*'")


def _require_equal_fields(wanted: object, current: object, names: Iterable[str], what: str) -> None:
    for name in names:
        received, existing = getattr(wanted, name), getattr(current, name)
        if received != existing:
            raise PreconditionFailedError(
                f"inequivalent arg {name!r} for {what}: received {describe(received)} but current is {describe(existing)}"
            )


def _require_equal_arguments(
    wanted: Mapping[str, FieldValue], current: Mapping[str, FieldValue], names: Iterable[str], what: str
) -> None:
    for name in names:
        if (name in wanted) != (name in current) or canonical(wanted.get(name)) != canonical(current.get(name)):
            received, existing = (describe(table[name]) if name in table else "none" for table in (wanted, current))
            raise PreconditionFailedError(
                f"inequivalent arg {name!r} for {what}: received {received} but current is {existing}"
            )


def _by_priority(policies: Iterable[Policy], targets: Collection[str]) -> list[tuple[RegularExpression, Policy]]:
    applicable = [policy for policy in policies if policy.apply_to in targets]
    ordered = sorted(applicable, key=lambda policy: (-policy.priority, policy.name))
    compiled = ((stored_expression(each.pattern, f"policy {each.name!r} in vhost {each.vhost!r}"), each) for each in ordered)
    return [(expression, policy) for expression, policy in compiled if expression is not None]


def _discard(index: dict[K, dict[Binding, Binding]], key: K, binding: Binding) -> bool:
    """Take this very binding out of an index. Return False if it was not there."""
    entries = index.get(key)
    if entries is None or entries.get(binding) is not binding:
        return False
    if len(entries) == 1:
        del index[key]
    else:
        del entries[binding]
    return True
