"""Power cuts: work is recorded once, and cut at many moments.

For each moment, the ledger is filled with what clients could know by then, because it was sent to them before in the
recording. A disk that lost its power at that moment is then opened and compared with the ledger.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holtmq.errors import StoreError
from holtmq.protocol.client_connection import ClientConnection, ClientEvent, ClientOptions, Delivery, ReceivedMethod, Settlement
from holtmq.store.records import Durability
from holtmq.testing import running_broker
from holtmq.wire import methods as wire
from tests.embedded.test_processes import assert_sound
from tests.faults.broker_run import QUEUES, STREAMS, BrokerRun, new_ledger
from tests.faults.client import Auditor, Client, Consumer, Publisher, TransactionPublisher
from tests.faults.embedded_run import Workers, contents, enter
from tests.faults.ledger import Ledger, ViolationError
from tests.faults.recording import Disk, Record, read_log
from tests.faults.shim import Shim

DATA, LOG = "data", "log"


@dataclass
class Recording:
    """What processes did to the files in a folder that was empty, and how to judge what a power cut leaves of it."""

    records: list[Record]
    first_cut: int
    """The first moment at which it makes sense to cut."""
    witness: Callable[[], Witness]
    audit: Callable[[Path, Ledger], None]

    @property
    def checkpoints(self) -> int:
        """How often the data file itself was synced, besides the WAL."""
        return sum(1 for record in self.records[self.first_cut :] if record.kind == "e" and record.name.endswith(".db"))

    def cut(self, seed: int, count: int, folder: Path) -> int:
        """Cut at moments spread over the recording. Return their number."""
        rng = random.Random(seed)
        possible = range(self.first_cut, len(self.records))
        moments = sorted(rng.sample(possible, min(count, len(possible))))
        (empty := folder / "empty").mkdir()
        disk, witness, at = Disk(empty), self.witness(), 0
        for moment in moments:
            for record in self.records[at:moment]:
                disk.take(record)
                witness.take(record)
            at = moment
            where = folder / f"cut {moment}"
            disk.survive(random.Random(f"{seed}.{moment}"), where)
            self._audit(where, witness.ledger.copy(), f"seed {seed}, cut at {moment} of {len(self.records)}")
        return len(moments)

    def cut_at_first_promise(self, folder: Path) -> None:
        """Cut as soon as a message was confirmed, and keep only what was synced by then."""
        (empty := folder / "nothing").mkdir()
        disk, witness = Disk(empty), self.witness()
        for record in self.records:
            disk.take(record)
            witness.take(record)
            if witness.ledger.has_promises:
                break
        else:
            raise AssertionError("no message was confirmed")
        where = folder / "first promise"
        disk.keep_synced(where)
        self._audit(where, witness.ledger, "cut at the first promise")

    def _audit(self, folder: Path, ledger: Ledger, what: str) -> None:
        try:
            self.audit(folder, ledger)
        except (AssertionError, StoreError, RuntimeError) as error:
            raise ViolationError(f"{what}: {error}") from error
        shutil.rmtree(folder)


class Witness:
    """Fills a ledger with what was sent up to a moment of a recording."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def take(self, record: Record) -> None:
        raise NotImplementedError


class WorkerWitness(Witness):
    """Reads the reports of workers. Each is a record of its own."""

    def take(self, record: Record) -> None:
        if record.kind == "s":
            for line in record.data.decode().splitlines():
                if line.split()[0] not in ("start", "error", "ended"):
                    enter(self.ledger, line)


class ClientWitness(Witness):
    """Reads what a broker sent to its clients, and knows what these had done. A channel number identifies a client."""

    def __init__(self, clients: list[Client]) -> None:
        super().__init__(new_ledger())
        self._clients = {client.channel: client for client in clients}
        self._connections: dict[int, ClientConnection] = {}
        self._commits: dict[int, int] = {}
        self._open = {client.channel: dict(client.published) for client in clients if isinstance(client, Publisher)}
        for client in clients:
            if isinstance(client, Publisher):
                for mark, queues in client.published.values():
                    self.ledger.publish(mark, queues)
            elif isinstance(client, TransactionPublisher):
                for number, commit in enumerate(client.commits):
                    for mark, queues in commit:
                        self.ledger.publish(mark, queues, group=client.channel * 1_000_000 + number)

    def take(self, record: Record) -> None:
        if record.kind == "s":
            connection = self._connections.setdefault(record.stream, ClientConnection(ClientOptions()))
            connection.receive(record.data)
            for event in connection.take_events():
                self._enter(event)

    def _enter(self, event: ClientEvent) -> None:
        match self._clients.get(event.channel), event:
            case Publisher(), Settlement():
                waiting = self._open[event.channel]
                for tag in [tag for tag in waiting if tag == event.tag or (event.multiple and tag < event.tag)]:
                    self.ledger.confirm(*waiting.pop(tag))
            case TransactionPublisher() as client, ReceivedMethod(_, wire.TxCommitOk()):
                number = self._commits[event.channel] = self._commits.get(event.channel, -1) + 1
                for mark, queues in client.commits[number]:
                    self.ledger.confirm(mark, queues)
            case Consumer() as client, Settlement():
                for tag in [tag for tag in client.synced if tag <= event.tag]:
                    for mark in client.synced[tag]:
                        self.ledger.sync(client.queue, mark)
            case Consumer() as client, Delivery():
                mark = self.ledger.deliver(client.queue, client.name, event.body, is_redelivered=event.redelivered)
                if event.tag in client.settlements:
                    self.ledger.settle(client.queue, mark, client.settlements[event.tag])


def record_broker(
    folder: Path, library: Path, seed: int, steps: int, *options: str, prepare: Callable[[Shim], None]
) -> Recording:
    """Record a broker on a new file, with clients of all kinds."""
    shim, rng = _shim(folder, library), random.Random(seed)
    run = BrokerRun(folder, shim, seed, *options)
    try:
        prepare(shim)
        first_cut = len(list(read_log(folder / LOG)))
        run.connect(rng)
        run.connect(rng)
        clients = list(run.clients)
        run.work(rng, steps)
        run.settle()
    finally:
        run.close()
    return Recording(list(read_log(folder / LOG)), first_cut, lambda: ClientWitness(clients), _audit_broker)


def record_embedded(
    folder: Path,
    library: Path,
    seed: int,
    actions: int,
    durability: Durability = "full",
    threads: int = 1,
    *,
    prepare: Callable[[Shim], None],
) -> Recording:
    """Record two processes on a new file, and the threads of each."""
    shim = _shim(folder, library)
    prepare(shim)
    workers = Workers(folder / DATA / "queue.db", shim, durability)
    try:
        for number in (1, 2):
            workers.start(number, f"{seed}.{number}", actions, threads)
        workers.wait()
        while not any(line == "ended" for line in workers.read(60)):
            pass
    finally:
        workers.close()
    return Recording(list(read_log(folder / LOG)), 0, lambda: WorkerWitness(Ledger()), _audit_embedded)


def _shim(folder: Path, library: Path) -> Shim:
    (folder / DATA).mkdir()
    return Shim(library, folder / DATA, folder / "control", folder / LOG)


def _audit_broker(folder: Path, ledger: Ledger) -> None:
    ledger.end_broker()
    with running_broker(folder / "broker.db", durability="off") as broker, Auditor(broker.port) as auditor:
        ledger.audit({**auditor.read(QUEUES), **auditor.read_streams(STREAMS)})
    assert_sound(folder / "broker.db")


def _audit_embedded(folder: Path, ledger: Ledger) -> None:
    ledger.forget_attempts()
    ledger.audit(contents(folder / "queue.db"))
    assert_sound(folder / "queue.db")
