"""How many messages went where, counted so that the hot path hardly notices.

A channel counts each publish once, at the way that the message took. What leaves a queue is counted by the batch. The rest
follows: what a queue was given is what it has, what consumers hold, and what is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from holtmq.broker.publication import Destination
from holtmq.routing.route import Entry

WAYS_KEPT = 1000
"""So many sets of queues are told apart on a channel; whatever goes another way is counted without their names."""
FOLDED = 10_000
"""Of exchanges and queues that are gone, so many are remembered."""


class Tally:
    """How many messages went from an exchange to the same queues."""

    __slots__ = ("copies", "count", "exchange", "queues")

    def __init__(self, exchange: str, queues: tuple[str, ...], copies: int) -> None:
        self.exchange = exchange
        self.queues = queues
        self.copies = copies
        """How many queues each message went to, named or not."""
        self.count = 0


class Way(NamedTuple):
    """Where messages go, what they get on the way, and who counts them."""

    destinations: Sequence[Destination]
    entries: Mapping[str, Entry]
    tally: Tally


class Tallies:
    """The tallies of one channel."""

    def __init__(self) -> None:
        self._by_way: dict[tuple[str, tuple[str, ...], int], Tally] = {}

    def __iter__(self) -> Iterator[Tally]:
        return iter(self._by_way.values())

    def way(self, exchange: str, destinations: Sequence[Destination], entries: Mapping[str, Entry]) -> Way:
        names, copies = tuple([destination.name for destination in destinations]), len(destinations)
        if (exchange, names, copies) not in self._by_way and len(self._by_way) >= WAYS_KEPT:
            names = ()
        tally = self._by_way.get((exchange, names, copies))
        if tally is None:
            tally = self._by_way[exchange, names, copies] = Tally(exchange, names, copies)
        return Way(destinations, entries, tally)


class Counters:
    """Numbers that can be added up, each to its like."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # those that have fields are dataclasses
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(slots=True)
class Outflow(Counters):
    """What left a queue, or what a channel was given. Acknowledgements follow from it: see `acknowledged`."""

    delivered: int = 0
    """To consumers that acknowledge."""
    sent: int = 0
    """To consumers that do not."""
    fetched: int = 0
    """By `get`, to be acknowledged."""
    fetched_for_good: int = 0
    fetched_in_vain: int = 0
    """By `get` on an empty queue."""
    redelivered: int = 0
    requeued: int = 0
    rejected: int = 0

    def acknowledged(self, unsettled: int) -> int:
        return self.delivered + self.fetched - self.requeued - self.rejected - unsettled


@dataclass(slots=True)
class Inflow(Counters):
    """What publishers did."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    """Mandatory, and no queue took it."""
    dropped: int = 0
    """Not mandatory, and no queue took it."""


@dataclass(slots=True)
class Churn:
    """What came and went."""

    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    bytes_received: int = 0
    """From connections that are closed."""
    bytes_sent: int = 0


class Traffic:
    """What went through exchanges, by channels that are gone or, once `add`ed, by all."""

    def __init__(self) -> None:
        self.published: Counter[str] = Counter()
        """By exchange."""
        self.routed: Counter[str] = Counter()
        """By exchange, each copy counted."""
        self.pairs: Counter[tuple[str, str]] = Counter()
        """By exchange and queue."""

    def add(self, tallies: Tallies) -> None:
        for tally in tallies:
            self.published[tally.exchange] += tally.count
            self.routed[tally.exchange] += tally.count * tally.copies
            for queue in tally.queues:
                self.pairs[tally.exchange, queue] += tally.count

    def copy(self) -> Traffic:
        copied = Traffic()
        copied.published, copied.routed, copied.pairs = self.published.copy(), self.routed.copy(), self.pairs.copy()
        return copied

    def forget(self, exchanges: Collection[str], queues: Collection[str]) -> None:
        """Keep what is still there, where much has been."""
        if len(self.pairs) > FOLDED + len(queues):
            kept = {pair: count for pair, count in self.pairs.items() if pair[0] in exchanges and pair[1] in queues}
            self.pairs = Counter(kept)
        if len(self.published) > FOLDED + len(exchanges):
            self.published = Counter({name: count for name, count in self.published.items() if name in exchanges})
            self.routed = Counter({name: count for name, count in self.routed.items() if name in exchanges})
