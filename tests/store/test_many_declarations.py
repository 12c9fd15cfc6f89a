"""A batch with many declarations, as an import of definitions makes it: it takes few steps and few statements."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest

from holtmq.errors import StoreError
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.topology import Binding, Exchange, Queue
from tests.places import database_at, journal_on
from tests.store.test_batch_steps import commit

NUMBER = 250
QUEUES = [Queue(f"queue ? {number} $1 \0", arguments={"x-max-length": number}) for number in range(NUMBER)]
BINDINGS = [
    Binding("e", queue.name, f"key.{number}", created_at=datetime(2026, 1, 1, tzinfo=UTC) if number % 2 else None)
    for number, queue in enumerate(QUEUES)
]


def declare(journal: BatchJournal, queues: list[Queue]) -> None:
    journal.add_exchange(Exchange("e", "topic"))
    for queue in queues:
        journal.add_queue(queue)
    for binding in BINDINGS:
        journal.add_binding(binding)


def test_many_declarations_take_few_steps_and_are_all_there(durable_place: str) -> None:
    with closing(journal_on(database_at(durable_place, owner="a test"))) as journal:
        journal.recover()
        declare(journal, QUEUES)
        journal.gather()
        assert journal.begin()
        assert sum(1 for _ in journal.write()) < 20
        journal.commit()
    with closing(journal_on(database_at(durable_place, owner="a test"))) as journal:
        found = journal.recover()
        assert set(found.topology.queues) == set(QUEUES)
        assert list(found.topology.bindings) == BINDINGS
        ids = [state.id for state in found.queues.values()]
        assert sorted(ids) == list(range(1, NUMBER + 1))


def test_a_batch_of_which_one_declaration_fails_is_not_written(durable_place: str) -> None:
    with closing(journal_on(database_at(durable_place, owner="a test"))) as journal:
        journal.recover()
        declare(journal, [*QUEUES, QUEUES[0]])  # a name that is there already
        with pytest.raises(StoreError):
            commit(journal)
    with closing(journal_on(database_at(durable_place, owner="a test"))) as journal:
        assert journal.recover().topology.queues == ()
