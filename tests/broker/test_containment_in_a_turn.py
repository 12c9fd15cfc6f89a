"""An error at any call of the end of a turn: the queue that fails loses no message, and those that share its turn go on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from holtmq.broker.broker import RETRY_MS
from holtmq.steps import complete
from tests.broker.conftest import Bench

PARTS = ("broker", "queueing", "store")
EDGES = {
    "Broker.end", "Broker.dispatch", "Broker._count", "MessageQueue._deliver",
    "InternalErrors.contain", "InternalErrors.report",
}  # fmt: skip
"""What contains errors."""
MESSAGES = 6


class InjectedError(Exception):
    pass


@contextmanager
def watching(profile: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of every function of the broker that is called."""
    folder = Path(sys.modules["holtmq"].__file__ or "").parent

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(folder)) or "<" in code.co_qualname:
            return
        if Path(code.co_filename).relative_to(folder).parts[0] in PARTS and code.co_qualname not in EDGES:
            profile(code.co_qualname)

    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(None)


class Scene:
    """Two queues that are awake in the same turn: one with rules, and a plain one, each with a publisher and a consumer."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.clients = {"ruled": self.bench.client(), "plain": self.bench.client()}
        self.clients["ruled"].declare("ruled", durable=True, max_priority=1)
        self.clients["plain"].declare("plain")
        self.bench.to_disk()

    def act(self) -> None:
        """Publish to both queues and consume from them, so that all of it is delivered at the end of one turn."""
        for number in range(MESSAGES):
            body, priority = b"%d" % number, number % 2
            self.clients["ruled"].publish("", "ruled", body, delivery_mode=2, expiration="100000", priority=priority)
            self.clients["plain"].publish("", "plain", body)
        self.bench.to_disk()
        for name, client in self.clients.items():
            client.consume(name)

    def end_turns(self, profile: Callable[[str], None]) -> None:
        """End some turns and watch their calls. Stored messages are delivered after a mark on disk, for each priority."""
        for _ in range(3):
            with self.bench.broker.internal_errors.contain("ending a turn", "all queues"), watching(profile):
                self.bench.broker.end()
            self.bench.start_commit()
            self.bench.broker.committed(self.bench.journal.commit())

    def after_all(self) -> dict[str, tuple[int, bool]]:
        """Replace the consumers, one of which may have failed, and give the queues time to try again.

        Return for each queue how many messages it has, and whether its new consumer gets those that are published later.
        """
        found = {}
        for name, client in self.clients.items():
            complete(client.channel.close())
            again = self.bench.client()
            again.publish("", name, b"later")
            again.consume(name)
            for _ in range(3):
                self.bench.turn(RETRY_MS)
                self.bench.to_disk()
            queue = self.bench.broker.vhosts["/"].queue(name)
            found[name] = (queue.message_count + queue.unsettled, b"later" in again.bodies)
        return found


def calls_in_a_turn() -> Counter[str]:
    seen: Counter[str] = Counter()
    scene = Scene()
    scene.act()
    scene.end_turns(lambda name: seen.update([name]))
    assert [len(client.bodies) for client in scene.clients.values()] == [MESSAGES, MESSAGES]
    scene.bench.journal.close()
    return seen


def test_an_error_at_any_call_loses_no_message_and_silences_no_queue() -> None:
    seen = calls_in_a_turn()
    assert len(seen) > 50
    for function in sorted(seen):
        for wanted in {1, seen[function]}:
            left = wanted

            def profile(name: str, function: str = function) -> None:
                nonlocal left
                if name == function:
                    left -= 1
                    if not left:
                        raise InjectedError(function)

            scene = Scene()
            scene.act()
            scene.end_turns(profile)
            assert scene.bench.broker.internal_errors.total == 1, function
            whole = (MESSAGES + 1, True)
            assert scene.after_all() == {"ruled": whole, "plain": whole}, f"call {wanted} of {function}"
            scene.bench.journal.close()


def test_an_error_in_the_marks_of_a_queue_leaves_those_of_others_alone() -> None:
    scene = Scene()
    scene.act()
    client = scene.bench.client()
    client.declare("other", durable=True)
    client.publish("", "other", b"m", delivery_mode=2)
    client.consume("other")
    scene.bench.turn()

    def fail_once(name: str) -> None:
        if name == "MessageQueue.mark":
            raise InjectedError(name)  # this also ends the watch

    with watching(fail_once):
        scene.bench.broker.sealed()
    assert scene.bench.broker.internal_errors.counts == {"marking deliveries": 1}
    assert scene.bench.broker.wanted_marks
