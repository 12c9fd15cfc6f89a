"""Bindings of deleted exchanges and queues are swept in steps; in between, nobody sees them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import pytest

from holtmq.errors import AmqpError, BindingArgumentsMismatchError
from holtmq.routing import Router
from holtmq.steps import Steps, complete
from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange, Queue, Removal

EXCHANGES = ("topic", "direct", "fanout", "headers", "topic2", "direct2", "x-consistent-hash", "x-consistent-hash2")
QUEUES = ("q0", "q1", "q2")
KEYS = ("a", "a.b", "*", "#", "1", "2")
ARGUMENTS: tuple[dict[str, FieldValue], ...] = ({}, {"x-match": "any", "h": 1})


Change: TypeAlias = Callable[[Router, bool], object]


class Swept:
    """A router whose ghosts are swept a step at a time, when it is told to."""

    def __init__(self) -> None:
        self.router = Router()
        self._sweeps: list[Steps[None]] = []

    def change(self, change: Change, is_swept: bool) -> object:  # noqa: FBT001
        result = outcome(lambda: change(self.router, is_swept))
        if isinstance(result, Removal) and result and not is_swept:
            self._sweeps.append(self.router.sweep(result))
        return parts(result)

    def step(self, random: Random) -> None:
        if self._sweeps:
            steps = random.choice(self._sweeps)
            if next(steps, "over") == "over":
                self._sweeps.remove(steps)

    def finish(self) -> None:
        for steps in self._sweeps:
            complete(steps)
        self._sweeps.clear()


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except (AmqpError, BindingArgumentsMismatchError) as error:
        return str(error)


def parts(removal: object) -> object:
    """Return a removal in an order that does not depend on when others were swept."""
    if not isinstance(removal, Removal):
        return removal
    return tuple(sorted(map(str, some)) for some in (removal.bindings, removal.exchanges, removal.queues))


def seen(router: Router) -> object:
    """Return all that a router shows of its bindings."""
    registry = router.registry
    ends = [("queue", name) for name in QUEUES] + [("exchange", name) for name in EXCHANGES]
    return (
        sorted(map(str, registry.bindings())),
        [sorted(map(str, registry.bindings_from(name))) for name in EXCHANGES],
        [sorted(map(str, registry.links_from(name))) for name in EXCHANGES],
        [sorted(map(str, registry.bindings_to(kind, name))) for kind, name in ends],  # type: ignore[arg-type]
        [outcome(lambda name=name, key=key: router.route(name, key, {"h": 1})) for name in EXCHANGES for key in KEYS],  # type: ignore[misc]
    )


def some_change(random: Random) -> Change:
    exchange, other, queue = random.choice(EXCHANGES), random.choice(EXCHANGES), random.choice(QUEUES)
    new = Exchange(exchange, exchange.rstrip("2"), auto_delete=exchange.endswith("2"))
    key, arguments = random.choice(KEYS), random.choice(ARGUMENTS)
    made = Binding(exchange, queue, key, arguments)
    if random.random() < 0.3:
        made = Binding(exchange, other, key, arguments, "exchange")
    changes: list[Change] = [
        lambda router, _: router.declare_exchange(new),
        lambda router, _: router.declare_queue(Queue(queue)),
        *[lambda router, _: router.bind(made)] * 8,
        lambda router, is_swept: router.unbind(made, is_swept=is_swept),
        lambda router, is_swept: router.delete_queue(queue, is_swept=is_swept),
        lambda router, is_swept: router.delete_exchange(exchange, if_unused=exchange == "fanout", is_swept=is_swept),
    ]
    return random.choice(changes)


@pytest.mark.parametrize("seed", range(8))
def test_a_router_with_ghosts_shows_what_one_without_shows(seed: int) -> None:
    random = Random(seed)
    eager, lazy = Swept(), Swept()
    for _ in range(300):
        change = some_change(random)
        assert lazy.change(change, False) == eager.change(change, True)
        lazy.step(random)
        assert seen(lazy.router) == seen(eager.router)
    lazy.finish()
    assert not lazy.router.registry.has_ghosts
    assert seen(lazy.router) == seen(eager.router)


def test_a_sweep_can_be_repeated() -> None:
    router = Router()
    router.declare_exchange(Exchange("e", "topic"))
    router.declare_queue(Queue("q"))
    for number in range(3):
        router.bind(Binding("e", "q", f"key.{number}"))
    removal = router.delete_queue("q", is_swept=False)
    next(router.sweep(removal))
    router.declare_queue(Queue("q"))
    router.bind(Binding("e", "q", "key.1"))
    for _ in range(2):
        complete(router.sweep(removal))
    assert [binding.routing_key for binding in router.registry.bindings()] == ["key.1"]
    assert [router.route("e", f"key.{number}") for number in range(3)] == [(), ("q",), ()]
