"""Threads that commit at the same time share a transaction, and each gets its own result or error."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holtmq.errors import LeaseLostError, StoreError
from holtmq.store.sql.shared_commit import SharedCommits
from tests.deadline import PATIENCE_S, eventually


class Transactions:
    """Counts transactions. The first waits for the others to pile up."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.number = 0
        self.is_free = threading.Event()
        self.shared = SharedCommits(self.commit)

    def commit(self, run: Callable[[sqlite3.Connection], None], *, is_single: bool) -> None:
        self.number += 1
        if self.number == 1:
            assert self.is_free.wait(PATIENCE_S)
        run(self.connection)


@pytest.fixture
def transactions() -> Iterator[Transactions]:
    transactions = Transactions()
    yield transactions
    transactions.is_free.set()
    transactions.connection.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def run_at_once(
    transactions: Transactions, pool: ThreadPoolExecutor, *works: Callable[[sqlite3.Connection], object]
) -> list[object]:
    """Run works while another one is committed, so that they share the next transaction. Return their results and errors."""
    first = pool.submit(transactions.shared.run, lambda _: "first")
    eventually(lambda: transactions.number == 1, "the first transaction")
    futures = [pool.submit(transactions.shared.run, work) for work in works]
    eventually(lambda: transactions.shared.waiting == len(works), "the others")
    transactions.is_free.set()
    assert first.result(PATIENCE_S) == "first"
    return [future.exception(PATIENCE_S) or future.result() for future in futures]


def test_each_thread_gets_its_own_result(transactions: Transactions, pool: ThreadPoolExecutor) -> None:
    assert run_at_once(transactions, pool, lambda _: 1, lambda _: 2, lambda _: 3) == [1, 2, 3]
    assert transactions.number == 2


def test_an_error_of_ours_belongs_to_one_thread(transactions: Transactions, pool: ThreadPoolExecutor) -> None:
    def lose(_: sqlite3.Connection) -> None:
        raise LeaseLostError("lost")

    before, lost, after = run_at_once(transactions, pool, lambda _: 1, lose, lambda _: 3)
    assert (before, after) == (1, 3)
    assert isinstance(lost, LeaseLostError)


def test_an_error_of_the_transaction_belongs_to_all(transactions: Transactions, pool: ThreadPoolExecutor) -> None:
    def fail(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("the disk is full")

    errors = run_at_once(transactions, pool, lambda _: 1, fail, lambda _: 3)
    assert [str(error) for error in errors] == ["the disk is full"] * 3
    assert len({id(error) for error in errors}) == 3
    assert transactions.shared.run(lambda _: "the next") == "the next"


def test_an_interrupt_of_one_thread_leaves_the_others_with_an_error(
    transactions: Transactions, pool: ThreadPoolExecutor
) -> None:
    def interrupt(_: sqlite3.Connection) -> None:
        raise KeyboardInterrupt

    found = run_at_once(transactions, pool, interrupt, lambda _: 2, lambda _: 3)
    assert isinstance(found[0], KeyboardInterrupt)
    assert all(isinstance(error, StoreError) and "interrupted by KeyboardInterrupt" in str(error) for error in found[1:])
    assert transactions.shared.run(lambda _: "the next") == "the next"


def test_a_thread_alone_waits_for_nobody(transactions: Transactions) -> None:
    transactions.is_free.set()
    assert [transactions.shared.run(lambda _, n=n: n) for n in range(3)] == [0, 1, 2]  # type: ignore[misc]
    assert transactions.number == 3
