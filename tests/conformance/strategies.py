"""Random topologies and traffic. Names are short, so that they collide and every rule is exercised."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from holtmq import Binding, Exchange, Queue, Table
from holtmq.table import FieldValue
from tests.conformance.naive import HASH
from tests.conformance.table import Action, Bind, DeleteExchange, DeleteQueue, Publish, Unbind

EXCHANGES = ["x0", "x1", "x2", "x3"]
QUEUES = ["q0", "q1", "q2", "q3"]

exchange_names = st.sampled_from(EXCHANGES)
queue_names = st.sampled_from(QUEUES)
words = st.sampled_from(["a", "b", "c", "", "*", "#"])
patterns = st.lists(words, max_size=5).map(".".join)
weights = st.sampled_from(["1", "1", "2", "30"])
keys = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6).map(".".join)
values: st.SearchStrategy[FieldValue] = st.sampled_from([1, 2, "1", "a", True, False, None, 0.5, [1, "a"], {"k": 1}])
header_names = st.sampled_from(["h1", "h2", "h3", "x-h"])
modes = st.sampled_from([{}, {"x-match": "all"}, {"x-match": "any"}, {"x-match": "all-with-x"}, {"x-match": "any-with-x"}])
arguments = st.builds(lambda mode, tests: Table({**mode, **tests}), modes, st.dictionaries(header_names, values, max_size=2))
headers = st.one_of(
    st.dictionaries(header_names, values, max_size=3),
    st.builds(
        lambda name, more: {name: more},
        st.sampled_from(["CC", "BCC"]),
        st.lists(st.one_of(keys, queue_names, st.just(1)), max_size=2),
    ),
).map(Table)


def exchange(
    name: str, type_: str, alternate: str | None, header: str | None, *, auto_delete: bool, internal: bool
) -> Exchange:
    arguments = {"alternate-exchange": alternate} if alternate else {}
    if header is not None:
        arguments["hash-header"] = header
    return Exchange(name, type_, auto_delete=auto_delete, internal=internal, arguments=arguments)


exchanges = st.builds(
    exchange,
    exchange_names,
    st.sampled_from(["direct", "fanout", "topic", "topic", "headers", HASH]),
    st.one_of(st.none(), exchange_names),
    st.one_of(st.none(), header_names),
    auto_delete=st.sampled_from([False, False, False, True]),
    internal=st.sampled_from([False, False, False, True]),
)
binding_keys = st.one_of(patterns, patterns, weights)
some_arguments = st.one_of(st.just(Table()), arguments)
bindings = st.one_of(
    st.builds(Binding, exchange_names, queue_names, binding_keys, some_arguments),
    st.builds(Binding, exchange_names, exchange_names, binding_keys, some_arguments, st.just("exchange")),
)
publishes = st.builds(Publish, st.one_of(exchange_names, st.just("")), st.one_of(keys, queue_names), headers)
changes: st.SearchStrategy[Action] = st.one_of(
    st.builds(Bind, bindings),
    st.builds(Bind, bindings),
    st.builds(Unbind, bindings),
    exchanges,
    st.builds(DeleteExchange, exchange_names),
    st.builds(Queue, queue_names),
    st.builds(DeleteQueue, queue_names),
)


@st.composite
def histories(draw: st.DrawFn, most: int = 40) -> list[Action]:
    """Set up a vhost at random, then change it and publish in any order.

    The same few messages are published again and again, so that a route is used before and after a change. An unbind often
    names an existing binding.
    """
    actions: list[Action] = [draw(exchanges.map(lambda x, name=name: rename(x, name))) for name in EXCHANGES]  # type: ignore[misc]
    actions += [Queue(name) for name in QUEUES]
    hashing = {action.name for action in actions if isinstance(action, Exchange) and action.type == HASH}
    bound = [weighted(b) if b.source in hashing else b for b in draw(st.lists(bindings, min_size=1, max_size=12))]
    actions += map(Bind, bound)
    unbinds = st.sampled_from(bound).map(Unbind)
    rebinds = st.sampled_from(bound).map(Bind)
    messages = st.sampled_from(draw(st.lists(publishes, min_size=1, max_size=4)))
    return actions + draw(st.lists(st.one_of(messages, messages, changes, unbinds, rebinds), min_size=3, max_size=most))


def weighted(binding: Binding) -> Binding:
    """Return a binding with a valid weight as its key."""
    return replace(binding, routing_key=str(len(binding.routing_key) % 3 + 1))


def without_hash(history: list[Action]) -> list[Action]:
    """Replace exchanges whose hash is not that of RabbitMQ."""
    return [replace(each, type="fanout") if isinstance(each, Exchange) and each.type == HASH else each for each in history]


def rename(exchange: Exchange, name: str) -> Exchange:
    return Exchange(
        name, exchange.type, auto_delete=exchange.auto_delete, internal=exchange.internal, arguments=exchange.arguments
    )
