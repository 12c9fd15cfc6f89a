"""The broker: its vhosts and users, and the turns in which it works.

It has no clock and no thread. The server begins a turn with the current time, carries out what clients request, and ends
the turn: messages then go to consumers, and confirms to publishers. The server calls `committed` when the journal's batch
is on disk.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.broker.authorization import Authorization
from holtmq.broker.chores import Chore, Chores
from holtmq.broker.confirms import Confirms
from holtmq.broker.containment import InternalErrors
from holtmq.broker.delayed import DelayedMessages
from holtmq.broker.lane import Lane
from holtmq.broker.memory import DEFAULT_LIMIT, MemoryBudget
from holtmq.broker.publication import Destination
from holtmq.broker.queue import READ_AGAIN_MS, MessageQueue
from holtmq.broker.queued_message import Restorer
from holtmq.broker.revocation import enforce_rights
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.session import Session
from holtmq.broker.store_reads import StoreReads
from holtmq.broker.traffic import Churn
from holtmq.broker.transaction import Transaction
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import InvalidValueError, NotAllowedError, NotFoundError, StoreError
from holtmq.steps import Steps
from holtmq.store.journal_port import JournalPort
from holtmq.store.records import ID_CLOCK_BITS
from holtmq.table import require_short_string
from holtmq.topology import Parameter, Policy, Topology
from holtmq.topology.registry import PREDECLARED
from holtmq.wire.content import Properties

log = logging.getLogger(__name__)

RETRY_MS = 1000
"""A queue in which an internal error occurred is tried again after this time."""

PAGE_OUT_MESSAGES = 1000
PAGE_OUT_BYTES = 4 * 1024 * 1024
"""What leaves the memory in one turn while it is short."""
COPIES_AT_ONCE = 40_000
"""Copies of messages to several queues that are made in one turn, without those of messages to very many. With half of it, a
message to 100 queues costs 15 % more processor time, because each consumer is written to twice as often."""
MANY_QUEUES = 1000
"""A message to more queues than this enters them in small steps."""
QUEUES_AT_ONCE = 2000
"""Queues that are dispatched when a turn ends. The rest follows in the next turns."""
HOGS = 10
SEARCH_MS = 100
"""Number of queues from which messages are paged out, and the time between two searches for them."""


class Broker:
    def __init__(self, journal: JournalPort, *, strict_unbind: bool = True, memory_limit: int = DEFAULT_LIMIT) -> None:
        self.journal = journal
        self.strict_unbind = strict_unbind
        self.authorization = Authorization()
        self.churn = Churn()
        self.internal_errors = InternalErrors()
        self._measuring = self.internal_errors.contain("measuring memory", "all queues")
        self.chores = Chores(self.internal_errors)
        self.reads = StoreReads()
        self.vhosts: dict[str, VirtualHost] = {}
        self.sessions: defaultdict[str, set[Session]] = defaultdict(set)
        """Open sessions, by the name of their user."""
        self.leaving: set[str] = set()
        """Vhosts whose contents are being deleted."""
        self.parameters: dict[tuple[str, str, str], Parameter] = {}
        self.now_ms = 0
        self.last_id = 0
        """The id of the newest message."""
        self.on_disk_id = 0
        """The newest message in the batches that are on disk."""
        self.sealed_id = 0
        """The newest message in the batch that is being written."""
        self.properties: dict[bytes, Properties] = {}
        """Recently decoded properties, by their bytes."""
        self.restorer = Restorer(self.properties)
        self.awake: list[ServedQueue] = []
        """Queues to dispatch before the turn ends."""
        self.committing: set[Transaction] = set()
        """Transactions that are being applied in steps. The journal's batch must not end meanwhile: it has them as a whole."""
        self.unconfirmed: list[Confirms] = []
        """Channels with unconfirmed messages."""
        self.starved: dict[ServedQueue, None] = {}
        """Queues whose next message is not on disk yet, or that wait for memory."""
        self.marking: list[tuple[MessageQueue, Lane]] = []
        """Lanes with deliveries in the batch that the journal is collecting."""
        self.wanted_marks: list[Lane] = []
        """Lanes whose marks are not on disk yet."""
        self.committed_batch = 0
        self.marked_batch = 0
        """All marks of deliveries up to this batch are on disk."""
        self.memory = MemoryBudget(memory_limit)
        self.read_errors = 0
        """How often the file could not be read."""
        self._copies_left = COPIES_AT_ONCE
        self._hogs: list[MessageQueue] = []
        """The queues that have the most in memory, while it is short, the largest one last."""
        self._next_search = 0
        self._crowded: list[ServedQueue] = []
        self.delayed = DelayedMessages(self)
        self._timers: list[tuple[int, int, ServedQueue]] = []
        self._timing = Chore("handling timers", "all queues", self._handle_timers)
        self._timing.is_done = True
        self._numbers = count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def vhost(self, name: str) -> VirtualHost:
        try:
            return self.vhosts[name]
        except KeyError:
            raise NotFoundError(f"no vhost {name!r}") from None

    def add_vhost(self, name: str, metadata: Mapping[str, Any] | None = None) -> VirtualHost:
        """Return the vhost of this name, creating it if needed, and update its metadata."""
        if name in self.leaving:
            raise NotAllowedError(f"vhost {name!r} is being deleted: try again when its contents are gone")
        if name not in self.vhosts:
            require_short_string(name, "a vhost's name")
            if not name:
                raise InvalidValueError("expected a vhost's name, got an empty one")
            self.vhosts[name] = VirtualHost(name, self, Topology())
        elif not metadata:
            return self.vhosts[name]
        vhost = self.vhosts[name]
        vhost.metadata = {**vhost.metadata, **(metadata or {})}
        self.journal.set_vhost(name, json.dumps(vhost.metadata))
        return vhost

    def remove_vhost(self, name: str) -> Steps[None]:
        """Remove a vhost. The returned steps delete its contents; its connections must be closed before the first.

        Nobody can enter the vhost from now on. Its name is free again after the last step.
        """
        vhost = self.vhost(name)
        del self.vhosts[name]
        self.leaving.add(name)
        self.parameters = {identity: kept for identity, kept in self.parameters.items() if kept.vhost != name}
        self.authorization.forget_vhost(name)
        return self._empty_vhost(vhost)

    def _empty_vhost(self, vhost: VirtualHost) -> Steps[None]:
        for queue in list(vhost.queues):  # by name, so that each is freed in its step
            if queue in vhost.queues:
                vhost.delete_queue(vhost.queues[queue])
            yield
        for exchange in list(vhost.router.registry.exchanges):
            if exchange not in PREDECLARED:
                vhost.delete_exchange(exchange)
            yield
        self.leaving.discard(vhost.name)
        self.journal.remove_vhost(vhost.name)

    def set_user(self, user: User) -> None:
        require_short_string(user.name, "a user's name")
        known = self.authorization.users.get(user.name)
        if user == known:
            return
        self.authorization.users[user.name] = user
        self.journal.set_user(user)
        if known is not None:
            self._enforce_rights(user.name)

    def remove_user(self, name: str) -> None:
        self.authorization.user(name)
        self.authorization.forget_user(name)
        self.journal.remove_user(name)
        self._rights_changed(name)

    def set_permission(self, permission: Permission | TopicPermission) -> None:
        self.authorization.user(permission.user)
        self.vhost(permission.vhost)
        if not self.authorization.set_permission(permission):
            return
        self.journal.set_permission(permission)
        self._rights_changed(permission.user)

    def remove_permission(self, permission: Permission | TopicPermission) -> None:
        self.authorization.remove_permission(permission)
        self.journal.remove_permission(permission)
        self._rights_changed(permission.user)

    def set_policy(self, policy: Policy) -> Steps[None]:
        """Set a policy. The returned steps apply it to the queues that exist."""
        vhost = self.vhost(policy.vhost)
        others = [other for other in vhost.router.registry.policies if other.name != policy.name]
        self.journal.set_policy(policy)
        return vhost.set_policies([*others, policy])

    def set_parameter(self, parameter: Parameter) -> None:
        if not parameter.is_global:
            self.vhost(parameter.vhost)
        self.parameters[parameter.identity] = parameter
        self.journal.set_parameter(parameter)

    def remove_parameter(self, parameter: Parameter) -> None:
        self.parameters.pop(parameter.identity, None)
        self.journal.remove_parameter(parameter)

    def remove_policy(self, vhost_name: str, name: str) -> Steps[None]:
        """Remove a policy. The returned steps apply what is left to the queues that exist."""
        vhost = self.vhost(vhost_name)
        self.journal.remove_policy(vhost_name, name)
        return vhost.set_policies([policy for policy in vhost.router.registry.policies if policy.name != name])

    def forget_routes(self) -> None:
        """Clear the caches of routes and properties."""
        self.properties.clear()
        for vhost in self.vhosts.values():
            vhost.router.forget_routes()

    def _rights_changed(self, user: str) -> None:
        for vhost in self.vhosts.values():
            vhost.generation += 1
        self._enforce_rights(user)

    def _enforce_rights(self, user: str) -> None:
        self.chores.add("enforcing the rights of a user", f"user {user!r}", lambda: enforce_rights(self, user))

    def open_session(self, user: User, vhost_name: str) -> Session:
        vhost = self.vhosts.get(vhost_name)
        if vhost is None:
            raise NotAllowedError(f"vhost {vhost_name!r} not found")
        if not self.authorization.may_enter(user.name, vhost_name):
            raise NotAllowedError(f"access to vhost {vhost_name!r} refused for user {user.name!r}")
        return Session(self, user, vhost)

    def begin(self, now_ms: int) -> None:
        """Start a turn: handle the timers that are due."""
        self.now_ms = now_ms
        self.last_id = max(self.last_id, now_ms << ID_CLOCK_BITS)
        if self.delayed.next_at is not None and self.delayed.next_at <= now_ms:
            self.delayed.release()
        if self._timers and self._timers[0][0] <= now_ms and self._timing.is_done:
            self._timing = self.chores.add("handling timers", "all queues", self._handle_timers)

    def _handle_timers(self) -> Steps[None]:
        while self._timers and self._timers[0][0] <= self.now_ms:
            _, _, queue = heapq.heappop(self._timers)
            if not queue.is_deleted:
                self._on_time(queue)
            yield

    def end(self) -> None:
        """Finish a turn: deliver messages to consumers, and confirm published ones.

        If very many queues have something to do, some of them stay awake for the next turn.
        """
        self._copies_left = COPIES_AT_ONCE
        crowded, self._crowded = self._crowded, []
        for queue in crowded:
            self._count(queue)
        left = QUEUES_AT_ONCE
        while self.awake and left > 0:
            awake, self.awake = self.awake[:left], self.awake[left:]
            left -= len(awake)
            for queue in awake:
                queue.is_awake = False
                self.dispatch(queue)
                self._count(queue)
        with self._measuring:
            self._assess_memory()
        if self.unconfirmed:
            self._confirm()

    def _count(self, queue: ServedQueue) -> None:
        """Count the memory of a queue, and note whether it is crowded."""
        try:
            self.memory.queues += queue.uncounted_memory()
            if queue.is_crowded and queue not in self._crowded:
                self._crowded.append(queue)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.internal_errors.report("counting messages", f"queue {queue.name!r}")

    def _assess_memory(self) -> None:
        memory = self.memory
        memory.unwritten, memory.log = self.journal.size, self.journal.memory
        was_short, was_exhausted = memory.is_short, memory.is_exhausted
        memory.assess(sum(len(vhost.queues) for vhost in self.vhosts.values()))
        if memory.is_short < was_short or memory.is_exhausted < was_exhausted:
            self._feed_starved()
        if memory.is_short and memory.unwritten < PAGE_OUT_BYTES:
            self._page_out()

    def _page_out(self) -> None:
        """Leave some messages of one of the largest queues to the file."""
        if not self._hogs and self.now_ms >= self._next_search:
            self._next_search = self.now_ms + SEARCH_MS
            queues = [queue for queue in self.message_queues() if queue.messages_in_memory]
            self._hogs = heapq.nlargest(HOGS, queues, key=attrgetter("memory"))[::-1]
        if self._hogs and (self._hogs[-1].is_deleted or not self._hogs[-1].page_out(PAGE_OUT_MESSAGES, PAGE_OUT_BYTES)):
            self._hogs.pop()

    def message_queues(self) -> list[MessageQueue]:
        """Return all queues that are not streams."""
        queues = (queue for vhost in self.vhosts.values() for queue in vhost.queues.values())
        return [queue for queue in queues if isinstance(queue, MessageQueue)]

    def at_once(self, copies: int, number: int) -> int:
        """Return how many of a number of messages to several queues may enter them now. The others must do so in steps."""
        if copies:
            number = min(number, self.copies_of(copies) // copies)
            self._copies_left -= number * copies
        return number

    def copies_of(self, copies: int) -> int:
        """Return how many copies of messages with this many copies may still be made in this turn."""
        return max(0, self._copies_left) if copies <= MANY_QUEUES else 0

    def copied(self, number: int) -> None:
        """Count copies that were made in steps."""
        self._copies_left -= number

    def expect(self, destinations: Sequence[Destination], properties: Properties, size: int, number: int = 1) -> bool:
        """Let queues save memory if the copies of messages, and those before them in this turn, may take too much.

        `size` is that of their bodies. Return whether the queues must.
        """
        copies = len(destinations)
        is_short = self.memory.expect(number * copies, copies * (size + 2 * number * len(properties.raw)))
        if is_short:
            for destination in destinations:
                destination.save_memory()
        return is_short

    def _feed_starved(self) -> None:
        starved, self.starved = self.starved, {}
        for queue in starved:
            queue.wake()

    def dispatch(self, queue: ServedQueue) -> None:
        """Deliver the messages of a queue. A queue that fails is left alone for a while, and then tried again."""
        try:
            queue.dispatch()
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.internal_errors.report("delivering messages", f"queue {queue.name!r}")
            queue.is_suspended = True
            self.schedule(queue, self.now_ms + RETRY_MS)

    def _on_time(self, queue: ServedQueue) -> None:
        if queue.is_suspended:
            queue.is_suspended = False
            queue.wake()
        try:
            queue.on_time()
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.internal_errors.report("handling a timer", f"queue {queue.name!r}")
            self.schedule(queue, self.now_ms + RETRY_MS)

    @property
    def dropped_letters(self) -> int:
        """Dead letters that were dropped because their chain was too long or too wide."""
        return sum(vhost.dead_letters.dropped for vhost in self.vhosts.values())

    @property
    def is_crowded(self) -> bool:
        """Whether publishers keep busy consumers from catching up."""
        return bool(self._crowded)

    @property
    def next_timer(self) -> int | None:
        """The time of the next timer, in milliseconds since 1970."""
        timer = self._timers[0][0] if self._timers else None
        return min((at_ms for at_ms in (timer, self.delayed.next_at) if at_ms is not None), default=None)

    @property
    def timer_count(self) -> int:
        """The number of scheduled timers."""
        return len(self._timers)

    def read_failed(self, what: str, error: StoreError, *, is_new: bool) -> None:
        """Count an error of the file, and log the first of a series."""
        self.read_errors += 1
        if is_new:
            log.error("cannot read %s, trying again every %d ms: %s", what, READ_AGAIN_MS, error)

    def schedule(self, queue: ServedQueue, at_ms: int) -> None:
        heapq.heappush(self._timers, (at_ms, self.next_number(), queue))

    def sealed(self) -> None:
        """Note that the journal starts to write a batch: messages published from now on are in a later one."""
        self.sealed_id = self.last_id
        marking, self.marking = self.marking, []
        for queue, lane in marking:
            try:
                if not queue.is_deleted:
                    queue.mark(lane)
            except Exception:  # noqa: BLE001  # contained: it is reported
                self.internal_errors.report("marking deliveries", f"queue {queue.name!r}")
        for lane in self.wanted_marks:
            lane.sealed_mark = lane.wanted
        for confirms in self.unconfirmed:
            confirms.sealed = confirms.published

    def committed(self, batch: int) -> None:
        """Note that all batches up to this one are on disk."""
        self.committed_batch = batch
        self.on_disk_id = self.sealed_id
        self.marked(batch)
        for confirms in self.unconfirmed:
            self._confirm_up_to(confirms, confirms.sealed)

    def marked(self, batch: int) -> None:
        """Note that the marks of deliveries in all batches up to this one are on disk. Continue the queues that wait."""
        self.marked_batch = batch
        wanted, self.wanted_marks = self.wanted_marks, []
        for lane in wanted:
            lane.marked = lane.sealed_mark
            if lane.wanted_batch > batch:
                self.wanted_marks.append(lane)
        self._feed_starved()

    def is_committed(self, batch: int) -> bool:
        """Return whether all changes up to this batch are on disk. A batch whose messages are all gone is never written."""
        if batch <= self.committed_batch:
            return True
        journal = self.journal
        return batch == journal.batch == self.committed_batch + 1 and not journal.has_changes

    def forget_delivered(self) -> None:
        """Note that all messages are back in their queues, when the broker stops."""
        marks = {place: mark for queue in self.message_queues() for place, mark in queue.marks().items()}
        self.journal.forget_delivered(marks)

    def _confirm(self) -> None:
        waiting = []
        for confirms in self.unconfirmed:
            if self.is_committed(confirms.journal_batch):
                self._confirm_up_to(confirms, confirms.published)
                confirms.is_waiting = False
            else:
                waiting.append(confirms)
        self.unconfirmed = waiting

    def _confirm_up_to(self, confirms: Confirms, number: int) -> None:
        try:
            confirms.confirm(number)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.internal_errors.report("confirming messages", "a publisher")
            confirms.outlet.fail()
