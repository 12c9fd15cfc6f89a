"""The ledger: what was published, confirmed, delivered and acknowledged, and what must therefore be true.

It is told about every step by the clients, and checks each guarantee as soon as it can. What a fault leaves open it leaves
open, too: a publish that was not confirmed, and an acknowledgement that was under way, may have taken effect or not.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

REMEMBERED = 20_000
LISTED = 12


class ViolationError(AssertionError):
    """A guarantee does not hold."""


class LostError(ViolationError):
    """A confirmed message is not there, or not there yet."""


class Mark(NamedTuple):
    """What identifies a message. It is the beginning of its body."""

    publisher: int
    sequence: int
    priority: int = 0
    is_persistent: bool = True
    size: int = 0

    def body(self) -> bytes:
        """Return the body, every byte of which follows from the mark."""
        filler = random.Random(hash(tuple(self))).randbytes(self.size)
        return b"%d.%d.%d.%d.%d|" % tuple(map(int, self)) + filler

    @classmethod
    def of(cls, body: bytes) -> Mark:
        """Return the mark of a message. Its body must be intact."""
        try:
            publisher, sequence, priority, is_persistent, size = map(int, body.partition(b"|")[0].split(b"."))
        except ValueError:
            raise ViolationError(f"a body is damaged: {body[:60]!r}") from None
        mark = cls(publisher, sequence, priority, bool(is_persistent), size)
        if mark.body() != body:
            raise ViolationError(f"the body of {mark} is damaged: {len(body)} bytes, {body[:60]!r}")
        return mark

    def __str__(self) -> str:
        return f"{self.publisher}.{self.sequence}"


class Found(NamedTuple):
    """A message that an audit found in a queue."""

    body: bytes
    is_redelivered: bool
    attempts: int | None = None
    """How often the embedded queue says that it was delivered."""


@dataclass(slots=True)
class Entry:
    """A message in a queue."""

    is_confirmed: bool = False
    settling: set[int] = field(default_factory=set)
    """The attempts in which an acknowledgement or rejection was sent. It may have arrived or not."""
    is_delivered: bool = False
    attempts: set[int] = field(default_factory=set)
    dead_letters: str | None = None
    """Where the message is if it is not here, because it was rejected."""
    group: int | None = None
    """The transaction in which it was published."""

    def copy(self) -> Entry:
        return replace(self, settling=set(self.settling), attempts=set(self.attempts))


Place = tuple[str, Mark]


class Ledger:
    """Queues named as `prioritized` keep the order within a priority only, and those named as `unordered` keep none.

    Those named as `streams` keep every message, a transient one too, at its place.
    """

    def __init__(self, *, prioritized: Iterable[str] = (), unordered: Iterable[str] = (), streams: Iterable[str] = ()) -> None:
        self.entries: dict[Place, Entry] = {}
        self.gone: dict[Place, int] = {}
        """What was acknowledged for certain, with the attempt in which it was."""
        self.perished: set[Mark] = set()
        """Transient messages of a broker that has ended."""
        self._prioritized, self._unordered = frozenset(prioritized), frozenset(unordered)
        self.streams: dict[str, list[Mark]] = {stream: [] for stream in streams}
        """What the last audit has found in each stream."""
        self.last: dict[tuple[str, str, int, int], int] = {}
        self.history: deque[tuple[str, str, object]] = deque(maxlen=REMEMBERED)
        self.counts = dict.fromkeys(("published", "confirmed", "delivered", "redelivered", "acknowledged", "audited"), 0)

    def copy(self) -> Ledger:
        """Return a ledger that goes on from here by itself."""
        other = copy(self)
        other.entries = {place: entry.copy() for place, entry in self.entries.items()}
        other.gone, other.perished = dict(self.gone), set(self.perished)
        other.streams = dict(self.streams)
        other.last, other.history, other.counts = dict(self.last), self.history.copy(), dict(self.counts)
        return other

    def publish(self, mark: Mark, queues: Iterable[str], group: int | None = None) -> None:
        self._note("publish", mark, sorted(queues))
        self.counts["published"] += 1
        for queue in queues:
            self.entries[queue, mark] = Entry(group=group)

    def confirm(self, mark: Mark, queues: Iterable[str]) -> None:
        """Record that a message must be in its queues until it is acknowledged."""
        self._note("confirm", mark, "")
        self.counts["confirmed"] += 1
        for queue in queues:
            if entry := self.entries.get((queue, mark)):
                entry.is_confirmed, entry.group = True, None

    def deliver(self, queue: str, consumer: str, body: bytes, *, is_redelivered: bool) -> Mark:
        """Record a delivery by the broker."""
        mark = Mark.of(body)
        self._note("redeliver" if is_redelivered else "deliver", mark, f"{queue} to {consumer}")
        entry = self._known(queue, mark)
        if entry.is_delivered and not is_redelivered:
            self._fail(mark, f"{mark} was delivered from {queue} again, without `redelivered`")
        if not is_redelivered and queue not in self._unordered:
            lane = (consumer, queue, mark.publisher, self._priority(queue, mark))
            if mark.sequence <= self.last.get(lane, -1):
                self._fail(mark, f"{mark} was delivered from {queue} to {consumer} after {self.last[lane]}")
            self.last[lane] = mark.sequence
        self.counts["redelivered" if is_redelivered else "delivered"] += 1
        entry.is_delivered = True
        self._is_here(entry, mark)
        return mark

    def claim(self, queue: str, body: bytes, attempt: int) -> Mark:
        """Record a delivery by the embedded queue, which counts them. Reports of two processes may cross on their way."""
        mark = Mark.of(body)
        self._note("claim", mark, f"{queue}, attempt {attempt}")
        if attempt <= self.gone.get((queue, mark), 0):
            return mark
        entry = self._known(queue, mark)
        if attempt in entry.attempts:
            self._fail(mark, f"{mark} was delivered twice from {queue} in attempt {attempt}")
        self.counts["redelivered" if entry.is_delivered else "delivered"] += 1
        entry.is_delivered = True
        entry.attempts.add(attempt)
        return mark

    def settle(self, queue: str, mark: Mark, dead_letters: str | None = None, attempt: int = 0) -> None:
        """Record that an acknowledgement, or a rejection to a queue for dead letters, is under way."""
        self._note("settle", mark, f"{queue} {dead_letters or ''}")
        if entry := self.entries.get((queue, mark)):
            entry.settling.add(attempt)
            entry.dead_letters = dead_letters
            if dead_letters is not None:
                self.entries[dead_letters, mark] = Entry()

    def sync(self, queue: str, mark: Mark, attempt: int = 0) -> None:
        """Record that an acknowledgement or rejection was carried out and is on disk."""
        self._note("synced", mark, queue)
        self.counts["acknowledged"] += 1
        self.gone[queue, mark] = attempt
        entry = self.entries.pop((queue, mark), None)
        if entry is not None and entry.dead_letters is not None and (dead := self.entries.get((entry.dead_letters, mark))):
            dead.is_confirmed = True

    def unsettle(self, queue: str, mark: Mark, attempt: int) -> None:
        """Record that an acknowledgement was refused."""
        self._note("unsettle", mark, queue)
        if entry := self.entries.get((queue, mark)):
            entry.settling.discard(attempt)

    def end_broker(self) -> None:
        """Record that the broker has ended. Transient messages end with it."""
        self.last.clear()
        for place in [place for place in self.entries if not place[1].is_persistent and place[0] not in self.streams]:
            del self.entries[place]
            self.perished.add(place[1])

    @property
    def has_promises(self) -> bool:
        """Whether there is a message that a broker must have, even if it has just started."""
        return any(
            entry.is_confirmed and not entry.settling and mark.is_persistent for (_, mark), entry in self.entries.items()
        )

    def forget_attempts(self) -> None:
        """Record that the embedded queue may have lost leases, and does not count these deliveries."""
        for entry in self.entries.values():
            entry.attempts.clear()

    def audit(self, found: Mapping[str, Sequence[Found]]) -> None:
        """Compare the ledger with the whole contents of some queues, in order."""
        present: set[Place] = set()
        for queue, messages in found.items():
            self._check_found(queue, messages, present)
            if queue in self.streams:
                self._check_places(queue, [Mark.of(message.body) for message in messages])
            self.counts["audited"] += len(messages)
        here = {place: entry for place, entry in self.entries.items() if place[0] in found}
        self._check_lost(here, present)
        self._check_groups(here, present)
        for queue, mark in present:
            self._is_here(self.entries[queue, mark], mark)

    def take(self, found: Mapping[str, Sequence[Found]]) -> None:
        """Record that everything that an audit found was then acknowledged for certain."""
        for queue, messages in found.items():
            for message in messages:
                self.sync(queue, Mark.of(message.body))

    def forget_stream(self, stream: str) -> None:
        """Record that a stream was deleted, and that an empty one has its name."""
        self.streams[stream] = []
        self.entries = {place: entry for place, entry in self.entries.items() if place[0] != stream}

    def _check_places(self, stream: str, marks: list[Mark]) -> None:
        """Check that what was in a stream is where it was."""
        for place, before in enumerate(self.streams[stream]):
            if place >= len(marks) or marks[place] != before:
                self._fail(before, f"{before} was at offset {place} of {stream}, and is not there any more")
        self.streams[stream] = marks

    def _check_found(self, queue: str, messages: Sequence[Found], present: set[Place]) -> None:
        """Check each message that is in a queue, and add it to what is present."""
        last: dict[tuple[int, int], Mark] = {}
        for message in messages:
            mark = Mark.of(message.body)
            entry = self._known(queue, mark)
            if (queue, mark) in present:
                self._fail(mark, f"{mark} is in {queue} twice")
            if queue in self.streams and message.is_redelivered:
                self._fail(mark, f"{mark} is read from {queue} with `redelivered`")
            is_again = entry.is_delivered and queue not in self.streams
            if is_again and message.attempts is None and not message.is_redelivered:
                self._fail(mark, f"{mark} is delivered from {queue} again, without `redelivered`")
            if message.attempts is not None and message.attempts < max(entry.attempts, default=0):
                self._fail(mark, f"{mark} in {queue} counts {message.attempts} attempts, after {entry.attempts}")
            lane = mark.publisher, self._priority(queue, mark)
            if queue not in self._unordered and lane in last and mark.sequence < last[lane].sequence:
                self._fail(mark, f"{mark} is in {queue} behind {last[lane]}", last[lane])
            last[lane] = mark
            entry.is_delivered = entry.is_delivered or message.attempts is None
            present.add((queue, mark))

    def _check_lost(self, here: Mapping[Place, Entry], present: set[Place]) -> None:
        lost = []
        for (queue, mark), entry in here.items():
            if not entry.is_confirmed or (queue, mark) in present:
                continue
            rejected = entry.dead_letters is not None and here.get((entry.dead_letters, mark))
            if not entry.settling or (rejected and not rejected.settling and (entry.dead_letters, mark) not in present):
                lost.append((queue, mark))
        if lost:
            names = ", ".join(f"{mark} in {queue}" for queue, mark in lost[:LISTED])
            raise LostError(f"{len(lost)} confirmed messages are lost: {names}\n{self._story(lost[0][1])}")

    def _check_groups(self, here: Mapping[Place, Entry], present: set[Place]) -> None:
        groups: dict[int, set[bool]] = {}
        for place, entry in here.items():
            if entry.group is not None and not entry.settling:
                groups.setdefault(entry.group, set()).add(place in present)
        for place, entry in here.items():
            if entry.group is not None and len(groups.get(entry.group, ())) == 2:
                self._fail(place[1], f"half of transaction {entry.group} is there, with {place[1]}")

    def _known(self, queue: str, mark: Mark) -> Entry:
        if (queue, mark) in self.gone:
            self._fail(mark, f"{mark} was acknowledged in {queue}, and came back")
        if mark in self.perished and queue not in self.streams:
            self._fail(mark, f"{mark} is transient, and survived the end of the broker")
        entry = self.entries.get((queue, mark))
        if entry is None:
            self._fail(mark, f"{mark} is in {queue}, to which it was not routed")
        return entry

    def _priority(self, queue: str, mark: Mark) -> int:
        return mark.priority if queue in self._prioritized else 0

    def _is_here(self, entry: Entry, mark: Mark) -> None:
        """Conclude that a message is still in its queue, whatever was sent to settle it."""
        entry.settling.clear()
        if entry.dead_letters is not None:
            self.entries.pop((entry.dead_letters, mark), None)
            entry.dead_letters = None

    def _note(self, what: str, mark: Mark, detail: object) -> None:
        self.history.append((what, str(mark), detail))

    def _fail(self, mark: Mark, what: str, *others: Mark) -> NoReturn:
        raise ViolationError(f"{what}\n{self._story(mark, *others)}")

    def _story(self, *marks: Mark) -> str:
        names = {str(mark) for mark in marks}
        return "\n".join(f"  {verb} {name} {detail}" for verb, name, detail in self.history if name in names)
