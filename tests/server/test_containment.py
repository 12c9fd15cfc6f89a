"""Containment: an error raised anywhere on the turn path harms the client or queue it concerns, and no other.

A profile function raises in the thread of the event loop when a given function is called. One broker goes through all of
these errors, while a bystander publishes, consumes and gets its confirms.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from holtmq.config import Config
from holtmq.server.run import running
from holtmq.server.server import Server
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import PATIENCE_S, eventually, last_seen

RESIGNATION_S = 0.25
"""How long a client waits for an answer after the error that may have cost it the answer."""
PARTS = ("broker", "server", "protocol", "queueing")
UNGUARDED = {
    "InternalErrors.contain", "InternalErrors.report",
    "Turns.begin", "Turns._end", "Turns._set_timer", "Turns._on_timer", "Client.connection_lost", "Server.dismiss",
    "Commits._committed", "Commits._continue", "Housekeeping._keep_house", "Server._make_client",
    "Chores.add", "Chores._start", "Chores._do", "ChoresBetweenTurns._has_time", "ChoresBetweenTurns._go_on", "Chores.retry",
}  # fmt: skip
"""What contains errors, or is called by the event loop itself: nothing stands between them and the loop."""


class InjectedError(Exception):
    pass


class Injector:
    """Watches the calls in the thread of a broker's event loop, and raises in one of them."""

    def __init__(self, server: Server) -> None:
        self._loop: asyncio.AbstractEventLoop = server.turns._loop  # noqa: SLF001
        self._folder = str(Path(sys.modules["holtmq"].__file__ or "").parent)
        self.has_raised = False

    def watch(self, seen: dict[str, int]) -> None:
        """Count the calls of each function."""

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and (name := self._name(frame)) is not None:
                seen[name] = seen.get(name, 0) + 1

        self._set(profile)

    def arm(self, function: str, call: int) -> None:
        """Raise when a function is called for the n-th time."""
        self.has_raised = False
        left = call

        def profile(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if event == "call" and self._name(frame) == function:
                left -= 1
                if not left:
                    self.has_raised = True
                    raise InjectedError(function)  # this also unsets the profile function

        self._set(profile)

    def disarm(self) -> None:
        self._set(None)

    def _name(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if not code.co_filename.startswith(self._folder) or "<" in code.co_qualname:
            return None
        part = Path(code.co_filename).relative_to(self._folder).parts[0]
        return code.co_qualname if part in PARTS and code.co_qualname not in UNGUARDED else None

    def _set(self, profile: Callable[[FrameType, str, object], None] | None) -> None:
        done = threading.Event()

        def run() -> None:
            sys.setprofile(profile)
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("containment") / "b.db"
    with running(Config(data=str(data), amqp_port=0, http_port=-1, durability="off")) as server:
        yield server


class Victim(Amqp):
    """A client that gives up soon after the error: some errors leave it without an answer."""

    def __init__(self, port: int, injector: Injector) -> None:
        self._injector = injector
        super().__init__(port)

    def _receive(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            has_raised = self._injector.has_raised
            try:
                super()._receive(RESIGNATION_S)
            except TimeoutError:
                if has_raised or time.monotonic() > deadline:
                    raise
            else:
                return


class Bystander:
    """A client of its own queue, with a consumer and with confirms."""

    def __init__(self, port: int) -> None:
        self.amqp = Amqp(port)
        self.channel = self.amqp.channel()
        self.channel.declare("bystander", durable=True)
        self.channel.confirm()
        self.channel.consume("bystander", "bystander")
        self.sent = 0

    def goes_on(self) -> None:
        """Publish a message, and expect its confirm and its delivery, in any order."""
        self.sent += 1
        body = b"%d" % self.sent
        self.channel.publish("", "bystander", body, delivery_mode=2)
        missing = {"basic.ack", "basic.deliver"}
        while missing:
            event = self.channel.next()
            missing.discard(event.method.label())
            if isinstance(event.method, wire.BasicDeliver):
                assert event.body == body
                self.channel.send(wire.BasicAck(event.method.delivery_tag))


def victim_session(port: int, name: str, injector: Injector) -> None:
    """Use every kind of thing that happens in a turn: rules, dead letters, requeues, transactions, replies, a lost socket."""
    with Victim(port, injector) as amqp:
        channel = amqp.channel()
        dead = f"{name}-dead"
        channel.declare(dead, durable=True)
        channel.declare(name, durable=True, max_length=2, max_priority=2, dead_letter_exchange="", dead_letter_routing_key=dead)
        channel.call(wire.QueueDeclare(0, f"{name}-own", exclusive=True), wire.QueueDeclareOk)
        channel.call(wire.QueueBind(0, name, "amq.topic", f"{name}.#"), wire.QueueBindOk)
        for number in range(4):
            channel.publish("amq.topic", f"{name}.k", b"%d" % number, delivery_mode=2, priority=number % 3)
        channel.publish("", f"{name}-own", b"own", expiration="0")
        channel.publish("amq.topic", "nowhere", b"back", mandatory=True)
        assert isinstance(channel.next().method, wire.BasicReturn)
        channel.get(name, no_ack=False)
        channel.send(wire.BasicNack(0, multiple=True, requeue=True))
        channel.consume(name, "one")
        channel.consume(dead, "two", no_ack=True)
        channel.send(wire.BasicNack(0, multiple=True, requeue=False))
        channel.settle()
        confirming = amqp.channel(2)
        confirming.confirm()
        confirming.publish("", dead, b"c", delivery_mode=2)
        confirming.settle()
        transactional = amqp.channel(3)
        transactional.call(wire.TxSelect(), wire.TxSelectOk)
        transactional.publish("", dead, b"t", delivery_mode=2)
        transactional.call(wire.TxCommit(), wire.TxCommitOk)
        channel.call(wire.BasicCancel("one"), wire.BasicCancelOk)
        channel.call(wire.QueuePurge(0, name), wire.QueuePurgeOk)
        amqp.channel(4).close()
        channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
        channel.publish("", dead, b"q", reply_to="amq.rabbitmq.reply-to")
        channel.settle()
        amqp.drop()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # refused victims
def test_an_error_anywhere_on_the_turn_path_leaves_bystanders_alone(server: Server) -> None:
    port = int(server.address.rsplit(":", 1)[1])
    injector, bystander = Injector(server), Bystander(port)
    seen: dict[str, int] = {}
    injector.watch(seen)
    victim_session(port, "rehearsal", injector)
    eventually(lambda: len(server.clients) == 1, "the victim to leave")
    injector.disarm()
    assert len(seen) > 100
    functions = sorted(seen)
    for number, function in enumerate(functions):
        injector.arm(function, 1 if number % 2 else seen[function] // 2 + 1)
        with suppress(ClosedError, OSError):
            victim_session(port, f"v{number}", injector)
        eventually(lambda: len(server.clients) == 1, f"the victim to leave after an error in {function}")
        injector.disarm()
        bystander.goes_on()
    vhost = server.broker.vhosts["/"]

    def left() -> list[str]:
        """Return the functions in which an error has left an exclusive queue behind."""
        owned = [name for name, queue in list(vhost.queues.items()) if queue.owner is not None]
        return [functions[int(name.removeprefix("v").removesuffix("-own"))] for name in owned]

    nothing: list[str] = []
    assert last_seen(left, nothing) == nothing
    assert last_seen(lambda: len(vhost.sessions), 1) == 1
    assert server.broker.internal_errors.total > 50
    bystander.amqp.close()


def test_a_queue_that_fails_is_tried_again(server: Server) -> None:
    port = int(server.address.rsplit(":", 1)[1])
    injector = Injector(server)
    with Amqp(port) as amqp:
        channel: Channel = amqp.channel()
        channel.declare("again")
        channel.consume("again", "c", no_ack=True)
        injector.arm("MessageQueue.take", 1)
        channel.publish("", "again", b"m")
        assert channel.next().body == b"m"
        assert injector.has_raised
