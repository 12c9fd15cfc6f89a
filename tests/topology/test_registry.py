"""The rules for declaring and deleting exchanges, queues and bindings, beyond the table of cases."""

from __future__ import annotations

import pickle

import pytest

from holtmq import (
    AccessRefusedError,
    Binding,
    BindingArgumentsMismatchError,
    Exchange,
    InvalidValueError,
    NotFoundError,
    Policy,
    PreconditionFailedError,
    Queue,
    Router,
    Topology,
)
from holtmq.topology import Registry


@pytest.fixture
def router() -> Router:
    router = Router()
    router.declare_exchange(Exchange("x", "direct"))
    router.declare_exchange(Exchange("y", "direct"))
    router.declare_queue(Queue("q"))
    return router


def test_binding_twice_is_one_binding_and_keeps_the_first(router: Router) -> None:
    assert router.bind(Binding("x", "q", "k", metadata={"first": True}))
    assert not router.bind(Binding("x", "q", "k", metadata={"first": False}))
    (binding,) = router.to_topology().bindings
    assert binding.metadata == {"first": True}


def test_a_mismatching_unbind_of_a_queue_says_406_with_class_and_method(router: Router) -> None:
    router.bind(Binding("x", "q", "k", {"a": 1}))
    with pytest.raises(BindingArgumentsMismatchError) as refusal:
        router.unbind(Binding("x", "q", "k", {"a": 2}))
    assert str(refusal.value) == "binding arguments do not match: got {'a': 2}, bound with {'a': 1}"
    assert (refusal.value.reply_code, refusal.value.class_id, refusal.value.method_id) == (406, 50, 50)
    assert router.route("x", "k") == ("q",)


def test_a_mismatching_unbind_of_an_exchange_names_exchange_unbind(router: Router) -> None:
    router.bind(Binding("x", "y", "k", {"a": 1}, "exchange"))
    with pytest.raises(BindingArgumentsMismatchError) as refusal:
        router.unbind(Binding("x", "y", "k", None, "exchange"))  # type: ignore[arg-type]
    assert (refusal.value.class_id, refusal.value.method_id) == (40, 40)
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


def test_without_strict_unbind_a_mismatch_is_no_error_and_removes_nothing() -> None:
    router = Router(Topology((Exchange("x"),), (Queue("q"),), (Binding("x", "q", "k", {"a": 1}),)), strict_unbind=False)
    assert not router.unbind(Binding("x", "q", "k"))
    assert router.route("x", "k") == ("q",)


def test_a_removal_reports_the_whole_cascade() -> None:
    exchanges = [Exchange(name, "fanout", auto_delete=True) for name in "abc"]
    links = [Binding("a", "b", destination_type="exchange"), Binding("b", "c", destination_type="exchange")]
    router = Router(Topology(tuple(exchanges), (Queue("q"),), (*links, Binding("c", "q"))))
    removal = router.delete_queue("q")
    assert [queue.name for queue in removal.queues] == ["q"]
    assert [exchange.name for exchange in removal.exchanges] == ["c", "b", "a"]
    assert set(removal.bindings) == {*links, Binding("c", "q")}
    assert router.to_topology() == Topology()


def test_a_cascade_through_thousands_of_exchanges_ends() -> None:
    count = 5_000
    exchanges = tuple(Exchange(f"e{n}", "fanout", auto_delete=True) for n in range(count))
    links = tuple(Binding(f"e{n}", f"e{n + 1}", destination_type="exchange") for n in range(count - 1))
    router = Router(Topology(exchanges, (Queue("q"),), (*links, Binding(f"e{count - 1}", "q"))))
    assert router.route("e0", "k") == ("q",)
    assert len(router.delete_queue("q").exchanges) == count


def test_if_unused_protects_an_exchange_that_has_bindings(router: Router) -> None:
    router.bind(Binding("x", "q", "k"))
    with pytest.raises(PreconditionFailedError, match="expected no bindings, it has 1"):
        router.delete_exchange("x", if_unused=True)
    router.unbind(Binding("x", "q", "k"))
    assert router.delete_exchange("x", if_unused=True)


def test_being_a_destination_is_not_being_used(router: Router) -> None:
    router.bind(Binding("x", "y", "k", destination_type="exchange"))
    assert router.delete_exchange("y", if_unused=True).exchanges == [Exchange("y", "direct")]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r: r.bind(Binding("no", "q")), NotFoundError, "no exchange 'no' in vhost '/'"),
        (lambda r: r.bind(Binding("x", "no")), NotFoundError, "no queue 'no' in vhost '/'"),
        (lambda r: r.bind(Binding("", "q")), AccessRefusedError, "operation not permitted on the default exchange"),
        (lambda r: r.declare_exchange(Exchange("amq.x")), AccessRefusedError, "contains reserved prefix 'amq.*'"),
        (lambda r: r.delete_exchange("amq.topic"), AccessRefusedError, "deletion of system exchange 'amq.topic'"),
        (
            lambda r: r.declare_exchange(Exchange("x", "topic")),
            PreconditionFailedError,
            "inequivalent arg 'type' for exchange 'x' in vhost '/': received string 'topic' but current is string 'direct'",
        ),
        (
            lambda r: r.declare_exchange(Exchange("x", arguments={"alternate-exchange": "y"})),
            PreconditionFailedError,
            "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received string 'y' but current is none",
        ),
        (
            lambda r: r.declare_queue(Queue("q", arguments={"x-message-ttl": 5})),
            PreconditionFailedError,
            "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received integer 5 but current is none",
        ),
        (
            lambda r: r.declare_queue(Queue("q", durable=False)),
            PreconditionFailedError,
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received boolean false but current is boolean true",
        ),
        (
            lambda r: r.declare_exchange(Exchange("z", "mystery")),
            InvalidValueError,
            "unknown exchange type 'mystery' of exchange 'z', expected one of direct, fanout, topic, headers",
        ),
        (lambda r: r.bind(Binding("x", "q", vhost="shop")), InvalidValueError, "this router is for vhost '/'"),
    ],
)
def test_errors_say_what_was_seen_and_what_was_expected(
    router: Router, change: object, error: type[Exception], message: str
) -> None:
    before = router.to_topology()
    with pytest.raises(error) as refusal:
        change(router)  # type: ignore[operator]
    assert message in str(refusal.value)
    assert router.to_topology() == before


def test_unknown_queue_arguments_do_not_matter_when_redeclaring(router: Router) -> None:
    assert not router.declare_queue(Queue("q", arguments={"comment": "new"}))


def test_bindings_that_dangle_are_left_out() -> None:
    topology = Topology((Exchange("x"),), (Queue("q"),), (Binding("x", "gone"), Binding("gone", "q"), Binding("x", "q")))
    assert Registry.of(topology, "/").to_topology().bindings == (Binding("x", "q"),)


def test_vhosts_are_worlds_apart() -> None:
    topology = Topology(
        (Exchange("x"), Exchange("x", "fanout", vhost="shop")),
        (Queue("q"), Queue("s", vhost="shop")),
        (Binding("x", "q", "k"), Binding("x", "s", vhost="shop")),
    )
    assert topology.vhosts == ("/", "shop")
    assert Router(topology).route("x", "k") == ("q",)
    assert Router(topology, "shop").route("x", "anything") == ("s",)


def test_a_policy_gives_an_alternate_exchange_by_pattern_and_priority() -> None:
    policies = (
        Policy("low", "^x", {"alternate-exchange": "wrong"}, "exchanges", 1),
        Policy("high", "^x1", {"alternate-exchange": "right"}, "all", 2),
        Policy("queues", "^x1", {"alternate-exchange": "wrong"}, "queues", 9),
    )
    exchanges = (Exchange("x1"), Exchange("x2"), Exchange("own", arguments={"alternate-exchange": "right"}))
    alternates = (Exchange("right", "fanout"), Exchange("wrong", "fanout"))
    bindings = (Binding("right", "r"), Binding("wrong", "w"))
    router = Router(Topology((*exchanges, *alternates), (Queue("r"), Queue("w")), bindings, policies))
    assert [router.route(name, "k") for name in ("x1", "x2", "own")] == [("r",), ("w",), ("r",)]
