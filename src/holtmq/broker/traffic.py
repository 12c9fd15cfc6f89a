"""Message counters, kept so that they cost the hot path next to nothing.

A channel counts each published message once, by exchange and set of queues. Deliveries are counted in batches. The other
numbers are derived: the messages that entered a queue are those in it, those unacknowledged, and those that left it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from holtmq.broker.publication import Destination
from holtmq.routing.route import Entry

WAYS_KEPT = 1000
"""Number of distinct sets of queues that a channel counts; further sets are counted together, without queue names."""
LARGEST_SET = 1000
"""Sets of more queues than this are counted without queue names."""
NAMES_KEPT = 20_000
"""Number of queue names in all the sets that a channel counts. When there are more, further sets are counted without."""
TALLY_BYTES = 400
NAME_BYTES = 8
"""What a tally takes, and each name in it beyond the string, which is that of the queue."""
FOLDED = 10_000
"""Number of deleted exchanges and queues whose counters are kept."""
PAIRS_KEPT = 50_000
"""Pairs of an exchange and a queue whose counters stay, those with the most messages, once there are twice as many."""


class Tally:
    """The number of messages that went from an exchange to one set of queues."""

    __slots__ = ("copies", "count", "exchange", "queues")

    def __init__(self, exchange: str, queues: tuple[str, ...], copies: int) -> None:
        self.exchange = exchange
        self.queues = queues
        self.copies = copies
        """Number of queues that each message went to, named or not."""
        self.count = 0


class Way(NamedTuple):
    """A resolved route: the destinations, what their bindings add, and the counter of the messages."""

    destinations: Sequence[Destination]
    entries: Mapping[str, Entry]
    tally: Tally


class Tallies:
    """The tallies of one channel."""

    def __init__(self) -> None:
        self._by_way: dict[tuple[str, tuple[str, ...], int], Tally] = {}
        self._names = 0

    @property
    def memory(self) -> int:
        """Bytes that the tallies take."""
        return TALLY_BYTES * len(self._by_way) + NAME_BYTES * self._names

    def __iter__(self) -> Iterator[Tally]:
        return iter(self._by_way.values())

    def way(self, exchange: str, destinations: Sequence[Destination], entries: Mapping[str, Entry]) -> Way:
        names: tuple[str, ...] = ()
        copies = len(destinations)
        if copies <= LARGEST_SET:
            names = tuple([destination.name for destination in destinations])
        is_full = len(self._by_way) >= WAYS_KEPT or self._names + len(names) > NAMES_KEPT
        if is_full and (exchange, names, copies) not in self._by_way:
            names = ()
        tally = self._by_way.get((exchange, names, copies))
        if tally is None:
            tally = self._by_way[exchange, names, copies] = Tally(exchange, names, copies)
            self._names += len(names)
        return Way(destinations, entries, tally)


class Counters:
    """Counters that can be added to others of the same kind."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(slots=True)
class Outflow(Counters):
    """The messages that left a queue, or that a channel received. `acknowledged` derives the acknowledgements."""

    delivered: int = 0
    """Deliveries to consumers that acknowledge."""
    sent: int = 0
    """Deliveries to consumers that do not acknowledge."""
    fetched: int = 0
    """basic.get with acknowledgement."""
    fetched_for_good: int = 0
    fetched_in_vain: int = 0
    """basic.get calls that found the queue empty."""
    redelivered: int = 0
    requeued: int = 0
    rejected: int = 0

    def acknowledged(self, unsettled: int) -> int:
        return self.delivered + self.fetched - self.requeued - self.rejected - unsettled


@dataclass(slots=True)
class Inflow(Counters):
    """The messages that publishers sent."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    """Unroutable and mandatory."""
    dropped: int = 0
    """Unroutable and not mandatory."""


@dataclass(slots=True)
class Churn:
    """Connections, channels and queues that were opened, created, closed or deleted."""

    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    bytes_received: int = 0
    """Bytes received on connections that are closed."""
    bytes_sent: int = 0


class Traffic:
    """The messages that passed through exchanges, on closed channels or, after `add`, on all."""

    def __init__(self) -> None:
        self.published: Counter[str] = Counter()
        """By exchange."""
        self.routed: Counter[str] = Counter()
        """By exchange, counting each copy."""
        self.pairs: Counter[tuple[str, str]] = Counter()
        """By exchange and queue."""

    def add(self, tally: Tally) -> None:
        self.published[tally.exchange] += tally.count
        self.routed[tally.exchange] += tally.count * tally.copies
        for queue in tally.queues:
            self.pairs[tally.exchange, queue] += tally.count

    def copy(self) -> Traffic:
        copied = Traffic()
        copied.published, copied.routed, copied.pairs = self.published.copy(), self.routed.copy(), self.pairs.copy()
        return copied

    def forget(self, exchanges: Collection[str], queues: Collection[str]) -> None:
        """Discard the counters of deleted exchanges and queues once there are many."""
        if len(self.pairs) > FOLDED + len(queues):
            kept = {pair: count for pair, count in self.pairs.items() if pair[0] in exchanges and pair[1] in queues}
            self.pairs = Counter(kept)
        if len(self.pairs) > 2 * PAIRS_KEPT:
            self.pairs = Counter(dict(self.pairs.most_common(PAIRS_KEPT)))
        if len(self.published) > FOLDED + len(exchanges):
            self.published = Counter({name: count for name, count in self.published.items() if name in exchanges})
            self.routed = Counter({name: count for name, count in self.routed.items() if name in exchanges})
