"""Random sequences of calls on two queues have the same outcome in the library, in the broker, and on a store between them.

The store is a file, or a schema of PostgreSQL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.queue_targets import (
    BrokerQueueTarget,
    EmbeddedQueueTarget,
    HandoverTarget,
    QueueTarget,
    Received,
    TestClock,
)

if TYPE_CHECKING:
    from tests.peers.postgres import Postgres

QUEUES = ("a", "b")
Declarations: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
Steps: TypeAlias = list[tuple[Any, ...]]


def arguments_of(dead_letter_queue: str) -> st.SearchStrategy[dict[str, Any]]:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letter_queue}
    parts = st.fixed_dictionaries(
        {},
        optional={
            "x-max-length": st.integers(0, 4),
            "x-max-length-bytes": st.integers(0, 12),
            "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
            "x-message-ttl": st.sampled_from([0, 50, 100]),
            "x-delivery-limit": st.integers(0, 2),
            "x-max-priority": st.integers(1, 3),
            "x-queue-type": st.sampled_from(["classic", "quorum"]),
        },
    )
    return st.builds(lambda own, more: {**own, **more}, parts, st.sampled_from([{}, dead_letters]))


calls = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from(QUEUES),
        st.integers(0, 5),
        st.fixed_dictionaries({}, optional={"priority": st.integers(0, 5), "expiration": st.sampled_from(["0", "70"])}),
    ),
    st.tuples(st.just("get"), st.sampled_from(QUEUES)),
    st.tuples(st.just("settle"), st.sampled_from(["ack", "requeue", "reject"]), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1, 50, 51, 120])),
    st.tuples(st.just("count"), st.sampled_from(QUEUES)),
)


class Game:
    """Plays steps on a target and records what it sees."""

    def __init__(self, target: QueueTarget) -> None:
        self._target = target
        self._held: list[Received] = []
        self.seen: list[Any] = []

    def play(self, declarations: Declarations, steps: Steps) -> list[Any]:
        for name, arguments in zip(QUEUES, declarations, strict=True):
            self._target.declare_queue(name, arguments)
        for number, step in enumerate(steps):
            self._take(number, step)
            self._target.catch_up()
        for message in self._held:
            message.settle("ack")
        for queue in QUEUES:
            while (left := self._get(queue)) is not None:
                left.settle("ack")
        self._target.close()
        return self.seen

    def _take(self, number: int, step: tuple[Any, ...]) -> None:
        match step:
            case "put", queue, size, properties:
                self.seen.append(self._target.publish("", queue, f"{number}".ljust(size, "."), properties))
            case "get", queue:
                message = self._get(queue)
                self._held += [message] if message is not None else []
            case "settle", how, place if self._held:
                self._held.pop(place % len(self._held)).settle(how)
            case "wait", milliseconds:
                self._target.wait(milliseconds)
            case "count", queue:
                self.seen.append(self._target.count(queue))

    def _get(self, queue: str) -> Received | None:
        message = self._target.get(queue)
        if message is not None:
            deaths = [(death["queue"], death["reason"], death["count"]) for death in message.headers.get("x-death", ())]
            count = message.headers.get("x-delivery-count")
            self.seen.append((message.body, message.is_redelivered, message.routing_key, deaths, count))
        return message


declarations = st.tuples(arguments_of("b"), arguments_of("a"))


def play(kind: Callable[[str, TestClock], QueueTarget], place: str, declarations: Declarations, steps: Steps) -> list[Any]:
    return Game(kind(place, TestClock())).play(declarations, steps)


@given(declarations, st.lists(calls, max_size=25))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_library_broker_and_a_file_between_them_agree(declarations: Declarations, steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = play(EmbeddedQueueTarget, f"{folder}/library.db", declarations, steps)
        broker = play(BrokerQueueTarget, f"{folder}/broker.db", declarations, steps)
        between = play(HandoverTarget, f"{folder}/between.db", declarations, steps)
    assert library == broker
    assert between == broker


@given(declarations=declarations, steps=st.lists(calls, max_size=25))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_on_postgresql_they_agree_with_a_broker_on_a_file(postgres: Postgres, declarations: Declarations, steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = play(BrokerQueueTarget, f"{folder}/broker.db", declarations, steps)
    assert play(EmbeddedQueueTarget, postgres.url(), declarations, steps) == expected
    assert play(BrokerQueueTarget, postgres.url(), declarations, steps) == expected
    assert play(HandoverTarget, postgres.url(), declarations, steps) == expected
