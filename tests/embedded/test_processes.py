"""Several threads and processes on one file, and processes that are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holtmq
from holtmq.database_url import is_url
from tests.deadline import PATIENCE_S
from tests.embedded.killing import count_calls, die_at_call, moments

ROUNDS = 100


def in_child(work: Callable[[int], None], *, kill_after: int | None = None) -> bytes:
    """Run work in a forked process. Return what it wrote to the pipe that it was given.

    With `kill_after` the process is killed when it has written that many numbers, unless it ends or kills itself before.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            work(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = b""
        if kill_after is not None:
            said = pipe.read(kill_after * struct.calcsize("q"))
            os.kill(child, signal.SIGKILL)
        said += pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in ((0,) if kill_after is None else (0, -signal.SIGKILL))
    return said


def in_children(work: Callable[[int], None], *, count: int) -> list[bytes]:
    """Run work in several processes at once; what each of them wrote."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(in_child, [work] * count))


def say(pipe: int, number: int) -> None:
    os.write(pipe, struct.pack("q", number))


def numbers(said: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack("q", said[: len(said) // 8 * 8])]


def assert_sound(path: str | Path) -> None:
    if is_url(path):
        return  # the server looks after its files
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    orphans = """
        SELECT (SELECT count(*) FROM deliveries WHERE message_id NOT IN (SELECT id FROM messages)),
               (SELECT count(*) FROM messages WHERE key_id NOT IN (SELECT id FROM routing_keys)),
               (SELECT count(*) FROM messages WHERE id <= (SELECT indexed_to FROM state)
                AND id NOT IN (SELECT message_id FROM deliveries))
    """
    assert connection.execute(orphans).fetchone() == (0, 0, 0)
    connection.close()


def test_each_message_is_claimed_by_exactly_one_process(shared_place: str) -> None:
    path = shared_place
    with holtmq.open(path, durability="off") as mq:
        ids = mq.queue("q").put_many([("m", f"k.{n % 7}") for n in range(300 if is_url(path) else 2000)])

    def claim_all(pipe: int) -> None:
        with holtmq.open(path, durability="off") as mq:
            queue = mq.queue("q")
            while (message := queue.pop(random.choice([None, "k.#", ["k.1", "k.*"]]))) is not None:
                message.ack()
                say(pipe, message.id)

    results = in_children(claim_all, count=4)
    claimed = [message_id for said in results for message_id in numbers(said)]
    assert sorted(claimed) == list(ids)
    assert_sound(path)


def test_puts_of_many_processes_all_arrive_in_an_order_that_each_can_recognise(shared_place: str) -> None:
    path = shared_place
    holtmq.open(path).close()

    def put_some(pipe: int) -> None:
        with holtmq.open(path, durability="off") as mq:
            for n in range(200):
                say(pipe, mq.queue("q").put(f"m{n}", f"k.{n % 10}"))

    results = in_children(put_some, count=4)
    assert all(numbers(said) == sorted(numbers(said)) for said in results)
    with holtmq.open(path) as mq:
        popped = [message.id for message in mq.queue("q").pop_many(1000)]
    assert popped == sorted(message_id for said in results for message_id in numbers(said))


def test_a_file_can_be_opened_and_closed_by_many_at_once(shared_place: str) -> None:
    """Opening first and closing last need the file for themselves for a moment; nobody else may notice."""
    path = shared_place

    rounds = 8 if is_url(path) else 40

    def come_and_go(pipe: int) -> None:
        for _ in range(rounds):
            with holtmq.open(path, durability="off") as mq:
                say(pipe, mq.queue("q").put("m", "k"))

    results = in_children(come_and_go, count=8)
    assert len({number for said in results for number in numbers(said)}) == 8 * rounds
    assert_sound(path)


def test_threads_share_one_file(shared_place: str) -> None:
    with holtmq.open(shared_place, durability="off") as mq:
        queue = mq.queue("q")
        seen: Counter[int] = Counter()

        def work() -> None:
            for n in range(100):
                queue.put(f"m{n}", f"k.{n}")
                message = queue.pop("k.#")
                assert message is not None
                seen[message.id] += 1
                message.ack()

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(seen), set(seen.values()), queue.list_messages()) == (600, {1}, [])


class Door:
    """A lock that tells when somebody other than the main thread wants it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.someone_waits = threading.Event()

    def acquire(self, timeout: float = -1) -> bool:
        if threading.current_thread() is not threading.main_thread():
            self.someone_waits.set()
        return bool(self._lock.acquire(timeout=timeout))

    def release(self, *_: object) -> None:
        self._lock.release()

    __enter__, __exit__ = acquire, release


def test_a_transaction_that_had_to_wait_for_another_thread_sees_what_others_changed(shared_place: str) -> None:
    path = shared_place
    with holtmq.open(path, durability="off") as mq, holtmq.open(path, durability="off") as other:
        mq.declare_exchange("x", "fanout")
        other.declare_queue("q")
        other.bind("q", "x")
        door = Door(mq.database._lock)  # noqa: SLF001  # to know when the thread waits
        mq.database._lock = door  # noqa: SLF001
        late = threading.Thread(target=mq.publish, args=("m",), kwargs={"exchange": "x"})
        with mq.database.transaction():
            late.start()
            assert door.someone_waits.wait(PATIENCE_S)
        late.join()
        assert mq.queue("q").size() == 1


def test_a_file_opened_before_a_fork_works_on_both_sides(shared_place: str) -> None:
    with holtmq.open(shared_place, durability="off") as mq:
        queue = mq.queue("q")
        queue.put("before", "k")

        def in_the_child(pipe: int) -> None:
            message = queue.pop()
            assert message is not None
            message.ack()
            queue.put("from the child", "k")

        in_child(in_the_child)
        message = queue.pop()
        assert message is not None
        assert message.text == "from the child"


FORKING = """
import os, sys, threading
import holtmq

sys.setswitchinterval(1e-6)
opened = [holtmq.open(f"{sys.argv[1]}/{number}.db", durability="off") for number in range(5)]

def fork(mq, *, in_transaction):
    for _ in range(30):
        if in_transaction:
            with mq.transaction():
                child = os.fork() or os._exit(0)
        else:
            child = os.fork() or os._exit(0)
        os.waitpid(child, 0)

threads = [threading.Thread(target=fork, args=(mq,), kwargs={"in_transaction": mq is opened[0]}) for mq in opened]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for mq in opened:
    mq.queue("q").put("all locks are free")
os._exit(0)
"""


def test_threads_fork_at_once(tmp_path: Path) -> None:
    """In a process of its own, because it would never end if a lock were left behind."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_never_falls_into_the_middle_of_a_transaction(shared_place: str) -> None:
    path = shared_place
    with holtmq.open(path, durability="off") as mq:
        queue, stop = mq.queue("q"), threading.Event()

        def stay_busy() -> None:
            while not stop.is_set():
                with mq.transaction():
                    queue.put("m", "k")
                    queue.pop_many(5)

        busy = threading.Thread(target=stay_busy)
        busy.start()

        def put_one(pipe: int) -> None:
            with holtmq.open(path, durability="off", timeout_s=PATIENCE_S) as other:
                say(pipe, other.queue("q").put("child", "k"))

        try:
            assert all(len(numbers(in_child(put_one))) == 1 for _ in range(30))
        finally:
            stop.set()
            busy.join()


def test_a_pop_is_woken_by_another_process(shared_place: str) -> None:
    path = shared_place
    with holtmq.open(path) as mq:
        queue = mq.queue("q")
        got: list[holtmq.Message | None] = []
        waiting = threading.Thread(target=lambda: got.append(queue.pop("k.*", wait_s=PATIENCE_S)))
        waiting.start()

        def put_one(pipe: int) -> None:
            with holtmq.open(path) as other:
                other.queue("q").put("hello", "k.l")

        in_child(put_one)
        waiting.join()
        assert got[0] is not None
        assert got[0].text == "hello"


def test_killed_while_putting_popping_acknowledging_and_tidying_up(tmp_path: Path) -> None:
    """Every put that returned is there once, whatever was acknowledged stays gone, and the file is sound."""
    path = tmp_path / "shop.db"
    holtmq.open(path).close()
    random.seed(7)
    put: set[int] = set()
    acked: set[int] = set()

    def work(pipe: int) -> None:
        with holtmq.open(path, durability="normal") as mq:
            queue = mq.queue("q")
            for n in range(1_000_000):
                say(pipe, queue.put(f"m{n}", f"k.{n % 50}"))
                if n % 3 == 0:
                    message = queue.pop("k.#" if n % 2 else None, lease_s=0.001)
                    assert message is not None
                    message.ack()
                    say(pipe, -message.id)
                if n % 40 == 39:
                    for message_id in queue.put_many([("a", "x.y"), ("b", "x.z")]):
                        say(pipe, message_id)
                    mq.vacuum()

    for _ in range(ROUNDS):
        said = numbers(in_child(work, kill_after=random.randint(0, 150)))
        put.update(number for number in said if number > 0)
        acked.update(-number for number in said if number < 0)
        assert_sound(path)
    assert len(acked) > ROUNDS
    with holtmq.open(path) as mq:
        there = Counter(message.id for message in mq.queue("q").list_messages(limit=10_000_000))
        assert set(there.values()) <= {1}
        missing = put - acked - set(there)
        assert len(missing) <= ROUNDS, "at most one per kill: acknowledged, and killed before it could say so"
        assert not acked & set(there)


def test_killed_while_the_file_is_made(tmp_path: Path) -> None:
    def make(path: Path, pipe: int) -> None:
        with holtmq.open(path) as mq:
            mq.queue("q").put("m")
            say(pipe, 1)

    whole = tmp_path / "whole.db"
    *_, calls = numbers(in_child(lambda pipe: say(pipe, count_calls(lambda: make(whole, pipe)))))
    sizes = set()
    for number in moments(calls, 40):
        path = tmp_path / f"{number}.db"
        said = in_child(
            lambda pipe, path=path, number=number: die_at_call(number, lambda: make(path, pipe)),  # type: ignore[misc]
            kill_after=2,
        )
        with holtmq.open(path) as mq:
            mq.queue("q").put("after")
            size = mq.queue("q").size()
        assert_sound(path)
        assert size == 2 or not said, "the message was there, and then it was not"
        sizes.add(size)
    assert sizes == {1, 2}


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9 there")
def test_killed_in_a_transaction_nothing_of_it_remains(shared_place: str) -> None:
    path = shared_place
    with holtmq.open(path) as mq:
        mq.queue("q").put("m")

    def half_a_transaction(pipe: int) -> None:
        with holtmq.open(path) as mq, mq.transaction():
            message = mq.queue("q").pop()
            assert message is not None
            message.ack()
            mq.queue("out").put("result")
            os.kill(os.getpid(), signal.SIGKILL)

    in_child(half_a_transaction, kill_after=1)
    with holtmq.open(path) as mq:
        assert [q.name for q in mq.topology().queues] == ["q"]
        assert mq.queue("q").size() == 1
