"""Several reads that wait for the thread that reads the store: how it shares the lock of Python with the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from holtmq.broker.broker import Broker
from holtmq.clock import SteadyClock
from holtmq.server.reading_thread import SWITCH_S, ReadsInThread
from holtmq.server.turns import Turns
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.file_store import file_journal
from tests.deadline import PATIENCE_S


def test_the_event_loop_lets_go_of_the_lock_sooner_while_several_reads_wait(tmp_path: Path) -> None:
    usual = sys.getswitchinterval()
    assert asyncio.run(intervals(tmp_path)) == pytest.approx([usual, SWITCH_S, usual])
    assert sys.getswitchinterval() == usual


async def intervals(folder: Path) -> list[float]:
    """Return the switch intervals while one read waits, while two do, and when both are done."""
    journal = file_journal(SqliteDatabase(folder / "b.db"))
    broker = Broker(journal)
    reads = ReadsInThread(journal, broker.internal_errors, Turns(broker, SteadyClock(), lambda _: None))
    go_on, are_done = threading.Event(), asyncio.Event()
    found = []
    for then in (lambda _: None, lambda _: are_done.set()):
        reads.ask(go_on.wait, then)
        found.append(sys.getswitchinterval())
    go_on.set()
    await asyncio.wait_for(are_done.wait(), PATIENCE_S)
    found.append(sys.getswitchinterval())
    reads.stop()
    journal.close()
    return found
