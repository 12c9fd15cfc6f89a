"""Any sequence of calls on a queue gives what a list and a few loops would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import holtmq
from holtmq.routing.pattern import split
from holtmq.store.sqlite import message_store
from tests.conformance.naive import fits
from tests.embedded.conftest import Clock

KEYS = ["a", "a.b", "a.c", "b", "b.x.c", ""]
PATTERNS = [None, "#", "a.*", "#.c", "b.#", "a", "nothing"]
MAX_ATTEMPTS = 3


@dataclass
class Entry:
    """A message in the model's queue; times in milliseconds."""

    key: str
    priority: int
    state: str = "ready"
    attempts: int = 0
    due: int | None = None
    expires: int | None = None


class QueueMachine(RuleBasedStateMachine):
    path: ClassVar[str] = ":memory:"

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.mq = holtmq.open(self.path, clock=self.clock)
        self.queue = self.mq.declare_queue("q", max_attempts=MAX_ATTEMPTS, max_priority=5)
        self.model: dict[int, Entry] = {}
        self.held: list[holtmq.Message] = []

    def teardown(self) -> None:
        self.mq.close()

    @property
    def now(self) -> int:
        return self.mq.now_ms()

    @rule(
        key=st.sampled_from(KEYS),
        priority=st.sampled_from([None, 0, 1, 5]),
        ttl_ms=st.sampled_from([None, None, 1000]),
        delay_s=st.sampled_from([0, 0, 2]),
    )
    def put(self, key: str, priority: int | None, ttl_ms: int | None, delay_s: float) -> None:
        message_id = self.queue.put("m", key, priority=priority, ttl_ms=ttl_ms, delay_s=delay_s)
        assert all(message_id > earlier for earlier in self.model)
        due = self.now + int(delay_s * 1000) if delay_s else None
        expires = None if ttl_ms is None else self.now + ttl_ms
        self.model[message_id] = Entry(key, priority or 0, "delayed" if due else "ready", due=due, expires=expires)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def put_many(self, keys: list[str]) -> None:
        for message_id, key in zip(self.queue.put_many([("m", key) for key in keys]), keys, strict=True):
            self.model[message_id] = Entry(key, 0)

    @rule(pattern=st.sampled_from(PATTERNS), lease_s=st.sampled_from([1, 10]))
    def pop(self, pattern: str | None, lease_s: float) -> None:
        message = self.queue.pop(pattern, lease_s=lease_s)
        expected = self.model_pop(pattern, lease_s)
        assert (message.id if message else None) == expected
        if message is not None:
            assert message.attempts == self.model[message.id].attempts
            self.held.append(message)

    def model_pop(self, pattern: str | None, lease_s: float) -> int | None:
        self.model_release()
        ready = sorted((-e.priority, i) for i, e in self.model.items() if e.state == "ready")
        for _, message_id in ready:
            entry = self.model[message_id]
            if pattern is not None and not fits(tuple(split(pattern)), tuple(split(entry.key))):
                continue
            if entry.expires is not None and entry.expires < self.now:
                del self.model[message_id]
                continue
            entry.state, entry.due = "locked", self.now + int(lease_s * 1000)
            entry.attempts += 1
            return message_id
        self.model_expire()
        return None

    def model_expire(self) -> None:
        """Expired messages leave at the head of each priority."""
        for priority in {entry.priority for entry in self.model.values()}:
            for message_id in sorted(i for i, e in self.model.items() if (e.state, e.priority) == ("ready", priority)):
                expires = self.model[message_id].expires
                if expires is None or expires >= self.now:
                    break
                del self.model[message_id]

    def model_release(self) -> None:
        for entry in self.model.values():
            if entry.due is not None and entry.due <= self.now:
                is_dead = entry.state == "locked" and entry.attempts >= MAX_ATTEMPTS
                entry.state, entry.due = "dead" if is_dead else "ready", None

    @rule(data=st.data(), how=st.sampled_from(["ack", "fail", "retry", "retry later", "extend"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        if not self.held:
            return
        message = data.draw(st.sampled_from(self.held))
        entry = self.model.get(message.id)
        call: Callable[[], object] = {
            "ack": message.ack,
            "fail": message.fail,
            "retry": message.retry,
            "retry later": lambda: message.retry(3),
            "extend": lambda: message.extend(20),
        }[how]
        if entry is None or entry.state != "locked" or entry.attempts != message.attempts:
            with pytest.raises(holtmq.LeaseLostError):
                call()
            return
        call()
        if how == "ack":
            del self.model[message.id]
        elif how == "extend":
            entry.due = self.now + 20_000
        elif how == "fail":
            entry.state, entry.due = "failed", None
        elif entry.attempts >= MAX_ATTEMPTS:
            entry.state, entry.due = "dead", None
        else:
            entry.state, entry.due = ("delayed", self.now + 3000) if how == "retry later" else ("ready", None)

    @rule(data=st.data())
    def retry_by_id(self, data: st.DataObject) -> None:
        settled = [i for i, e in self.model.items() if e.state in ("failed", "dead")]
        if settled:
            message_id = data.draw(st.sampled_from(settled))
            self.queue.retry(message_id)
            self.model[message_id] = replace(self.model[message_id], state="ready", due=None)

    @rule(seconds=st.sampled_from([0.5, 1, 2.5, 15]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        self.model = {i: e for i, e in self.model.items() if e.state not in ("ready", "delayed")}

    @rule()
    def change_of_mind(self) -> None:
        """Whatever is done in a transaction that fails was never done."""

        def undone() -> None:
            with self.mq.transaction():
                self.queue.put("never", "a.b", priority=5)
                while (message := self.queue.pop("#")) is not None:
                    message.ack()
                raise RuntimeError

        with pytest.raises(RuntimeError):
            undone()

    @invariant()
    def same_messages_in_the_same_states(self) -> None:
        names = {"delayed": "ready"}
        self.model_expire()
        seen = {message.id: message.state for message in self.queue.list_messages()}
        assert seen == {i: names.get(e.state, e.state) for i, e in self.model.items()}


class WalkingQueueMachine(QueueMachine):
    """The same where every pattern counts as one of many keys, so that pops walk the queue and remember how far."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(message_store, "MANY_KEYS", 1)
        self._patch.setattr(message_store, "LOOK_STEP", 1)
        self._patch.setattr(message_store, "LOOK_AHEAD", 3)

    def teardown(self) -> None:
        self._patch.undo()
        super().teardown()


TestQueueAgainstItsModel = QueueMachine.TestCase
TestQueueAgainstItsModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWalkingQueueAgainstItsModel = WalkingQueueMachine.TestCase
TestWalkingQueueAgainstItsModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
