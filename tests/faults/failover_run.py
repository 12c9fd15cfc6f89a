"""Rounds of traffic against an active broker and its standby on PostgreSQL, with a fault in each, and an audit after it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from holtmq.protocol.client_connection import ClientEvent, Delivery, Settlement
from holtmq.wire import methods as wire
from tests.deadline import PATIENCE_S, eventually
from tests.faults.broker_run import BrokerRun, Fault, settle_some
from tests.faults.client import SYNC_QUEUE, Client, Consumer
from tests.faults.ledger import Mark, ViolationError
from tests.faults.shim import NoShim
from tests.peers.postgres import Postgres
from tests.server.pair import Pair

CONSUMING_S = 1.5


class FailoverRun(BrokerRun):
    def __init__(self, folder: Path, server: Postgres, seed: int) -> None:
        self.server = server
        super().__init__(folder, cast("Any", NoShim()), seed)

    def _start_broker(self, folder: Path, *options: str) -> Any:
        module = "tests.faults.small_windows"  # so that faults hit reads of the backlog, too
        self.pair = Pair(self.server, folder, "--log-level", "warning", *options, module=module)
        return self.pair

    def settle(self) -> None:
        """Let consumers go on for a while first: a message may come a second after an error of the database."""
        rng, ends_at = random.Random(f"{self.seed}.consume"), time.monotonic() + CONSUMING_S
        while time.monotonic() < ends_at:
            for client in self.clients:
                if isinstance(client, Consumer) and not client.is_lost:
                    settle_some(client, rng)
            self.exchange(0.005)
        super().settle()

    def restart(self, rng: random.Random) -> None:
        """Go on with whichever broker is active now, after the one before has ended or stepped down."""
        for client in self.clients:
            client.exchange()
            client.lose()
        self.clients.clear()
        self.ledger.end_broker()
        self.pair.start()
        self.connect(rng)

    def go_on(self, rng: random.Random, before: object) -> None:
        """Go on with the broker that confirms messages, which may be another one than before, or the same one again."""
        self.confirm_one()
        if self.incarnation() != before:
            self.restart(rng)

    def incarnation(self) -> object:
        return self.pair.active, self.pair.active.process, len(self.pair.active.lines)

    def confirm_one(self) -> None:
        """Wait until an active broker confirms a persistent message."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            active = eventually(lambda: [broker for broker in self.pair.brokers if broker.is_active], "an active broker")[0]
            self.pair.active = active
            with suppress(OSError), _Witness(active.port) as client:
                if client.is_confirmed(min(deadline, time.monotonic() + 5.0)):
                    return
        raise ViolationError(f"no broker has confirmed a message within {PATIENCE_S:g} s after the fault was over")

    def stay_silent(self, former: list[Client]) -> None:
        """Check that a broker that is not active any more sends its clients nothing but its farewell."""
        deadline = time.monotonic() + PATIENCE_S
        while waiting := [client for client in former if not client.is_lost]:
            for client in waiting:
                for event in Client.exchange(client):
                    if isinstance(event, Delivery | Settlement):
                        raise ViolationError(f"{client.name} got {event} from a broker that is not active any more")
            if time.monotonic() > deadline:
                raise ViolationError(f"{waiting[0].name} is still connected to a broker that is not active any more")
            time.sleep(0.01)


class _Witness(Client):
    """Publishes one persistent message to the queue that the ledger does not look at."""

    def __init__(self, port: int) -> None:
        self._has_confirm = False
        super().__init__(port, "witness")
        self.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)

    def handle(self, event: ClientEvent) -> None:
        self._has_confirm |= isinstance(event, Settlement)

    def is_confirmed(self, deadline: float) -> bool:
        self.publish("", SYNC_QUEUE, Mark(0, 0))
        while not self._has_confirm and not self.is_lost and time.monotonic() < deadline:
            self.exchange()
            self.wait()
        return self._has_confirm


def _pair(run: BrokerRun) -> FailoverRun:
    assert isinstance(run, FailoverRun)
    return run


@contextmanager
def kill_the_active(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL of the active broker, at any moment."""
    pair = _pair(run).pair
    pair.active.kill()
    pair.take_over()
    run.restart(rng)
    yield


@contextmanager
def kill_both(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    pair = _pair(run).pair
    for broker in rng.sample(pair.brokers, 2):
        broker.kill()
    run.restart(rng)
    yield


@contextmanager
def terminate_the_active(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGTERM of the active broker."""
    pair = _pair(run).pair
    for client in run.clients:
        client.exchange()
        client.lose()
    pair.active.terminate()
    pair.take_over()
    run.restart(rng)
    yield


@contextmanager
def cut_the_active(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """The connections between the active broker and the database are closed. It may keep the database, or lose it."""
    failover = _pair(run)
    before = failover.incarnation()
    failover.pair.active.proxy.cut()
    yield
    failover.go_on(rng, before)


@contextmanager
def cut_in_a_commit(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """The connection is closed while a commit is on the way to the database, or its answer on the way back."""
    failover = _pair(run)
    before, proxy = failover.incarnation(), failover.pair.active.proxy
    proxy.cut_at(b"COMMIT", is_answered=rng.random() < 0.7)
    yield
    proxy.heal()
    failover.go_on(rng, before)


@contextmanager
def swallow_for_a_moment(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """The network swallows what broker and database send each other, and then everything is reset."""
    failover = _pair(run)
    before, proxy = failover.incarnation(), failover.pair.active.proxy
    proxy.swallow()
    yield
    proxy.heal()
    failover.go_on(rng, before)


@contextmanager
def freeze_the_active(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGSTOP until the standby has taken over, then SIGCONT."""
    failover = _pair(run)
    failover.pair.active.freeze()
    former, run.clients = list(run.clients), []
    for client in former:
        client.exchange()
    frozen = failover.pair.take_over()
    run.ledger.end_broker()
    run.connect(rng)
    try:
        yield
    finally:
        frozen.thaw()
    failover.stay_silent(former)
    eventually(lambda: frozen.is_standby, "the former broker to be a standby")


@contextmanager
def cut_the_active_off(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """The network swallows what the active broker and the database send each other, until the standby has taken over."""
    failover = _pair(run)
    proxy = failover.pair.active.proxy
    proxy.swallow()
    former, run.clients = list(run.clients), []
    cut_off = failover.pair.take_over()
    for client in former:
        client.exchange()
    run.ledger.end_broker()
    run.connect(rng)
    try:
        failover.stay_silent(former)
        yield
    finally:
        proxy.heal()
    eventually(lambda: cut_off.is_standby, "the former broker to be a standby")


@contextmanager
def stop_the_database(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """The database is restarted, as for an update."""
    failover = _pair(run)
    before = failover.incarnation()
    failover.server.stop()
    run.exchange(0.01)
    failover.server.start()
    yield
    failover.go_on(rng, before)


@contextmanager
def kill_the_database(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL of all processes of the database."""
    failover = _pair(run)
    before = failover.incarnation()
    failover.server.kill()
    run.exchange(0.01)
    failover.server.start()
    yield
    failover.go_on(rng, before)


QUICK: tuple[Fault, ...] = (
    kill_the_active,
    cut_the_active,
    cut_in_a_commit,
    terminate_the_active,
    stop_the_database,
    kill_the_database,
)
FAULTS: tuple[Fault, ...] = (*QUICK, kill_both, swallow_for_a_moment, freeze_the_active, cut_the_active_off)
"""Some of them take longer than the silence after which a standby takes over."""
