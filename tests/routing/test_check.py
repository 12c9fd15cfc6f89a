"""Findings for a topology."""

from __future__ import annotations

import pytest

from holtmq import Binding, Exchange, Policy, Queue, Topology
from holtmq.routing.check import check

X, F, H, D = Exchange("x", "topic"), Exchange("f", "fanout"), Exchange("h", "headers"), Exchange("d", "direct")
Q = Queue("q")


def link(source: str, destination: str, key: str = "") -> Binding:
    return Binding(source, destination, key, destination_type="exchange")


def kinds(topology: Topology) -> list[tuple[str, str]]:
    return [(finding.kind, finding.subject) for finding in check(topology)]


def test_a_sound_topology_has_no_findings() -> None:
    assert check(Topology((X,), (Q,), (Binding("x", "q", "a.#"), Binding("x", "q", "b.#")))) == []


def test_a_queue_that_nothing_is_bound_to_is_a_notice() -> None:
    (finding,) = check(Topology((), (Q,)))
    assert (finding.level, finding.kind, finding.subject) == ("notice", "unreachable queue", "queue 'q'")


def test_a_queue_behind_an_internal_exchange_that_nobody_reaches() -> None:
    internal = Exchange("i", "fanout", internal=True)
    assert kinds(Topology((internal,), (Q,), (Binding("i", "q"),))) == [
        ("unreachable exchange", "exchange 'i'"),
        ("unreachable queue", "queue 'q'"),
    ]
    assert kinds(Topology((internal, F), (Q,), (Binding("i", "q"), link("f", "i")))) == []


def test_exchanges_that_lead_nowhere() -> None:
    chain = (X, F, D)
    assert kinds(Topology(chain, (), (link("x", "f"), link("f", "d")))) == [
        ("leads nowhere", "exchange 'd'"),
        ("leads nowhere", "exchange 'f'"),
        ("leads nowhere", "exchange 'x'"),
    ]
    assert kinds(Topology(chain, (Q,), (link("x", "f"), link("f", "d"), Binding("d", "q", "k")))) == []


def test_an_alternate_exchange_counts_as_a_way_on() -> None:
    with_alternate = Exchange("x", "topic", arguments={"alternate-exchange": "f"})
    assert kinds(Topology((with_alternate, F), (Q,), (Binding("f", "q"),))) == []


@pytest.mark.parametrize("alternate", ["gone", ""])
def test_alternate_exchanges_that_lead_nowhere(alternate: str) -> None:
    with_alternate = Exchange("x", "topic", arguments={"alternate-exchange": alternate})
    found = kinds(Topology((with_alternate,), (Q,), (Binding("x", "q", "k"),)))
    assert found == [("missing alternate exchange", "exchange 'x'")]


def test_an_alternate_exchange_named_by_a_policy_is_looked_at_too() -> None:
    policy = Policy("catch", "^x$", {"alternate-exchange": "gone"}, "exchanges")
    (finding,) = check(Topology((X,), (Q,), (Binding("x", "q", "k"),), (policy,)))
    assert "'gone' (set by policy 'catch') does not exist" in finding.message


def test_a_missing_dead_letter_exchange() -> None:
    queue = Queue("q", arguments={"x-dead-letter-exchange": "gone"})
    assert kinds(Topology((X,), (queue,), (Binding("x", "q", "k"),))) == [("missing dead-letter exchange", "queue 'q'")]


def test_dangling_bindings() -> None:
    found = check(Topology((X,), (Q,), (Binding("x", "q", "k"), Binding("x", "gone", "k"), Binding("gone", "q"))))
    assert [finding.message for finding in found] == [
        "exchange 'gone' does not exist, so the binding is ignored",
        "queue 'gone' does not exist, so the binding is ignored",
    ]


def test_a_foreign_exchange_type() -> None:
    found = kinds(Topology((Exchange("x", "x-random"),), (Q,), (Binding("x", "q", "k"),)))
    assert found == [("unknown exchange type", "exchange 'x'")]


@pytest.mark.parametrize(
    ("exchange", "narrow", "broad"),
    [
        (X, Binding("x", "q", "a.b"), Binding("x", "q", "a.#")),
        (X, Binding("x", "q", "a.*.c"), Binding("x", "q", "a.#.c")),
        (X, Binding("x", "q", "*.#"), Binding("x", "q", "#")),
        (X, Binding("x", "q", "a.#.b"), Binding("x", "q", "#.b")),
        (X, Binding("x", "q", "a.b", {"n": 1}), Binding("x", "q", "a.b")),
        (F, Binding("f", "q", "k"), Binding("f", "q", "")),
        (D, Binding("d", "q", "k", {"n": 1}), Binding("d", "q", "k")),
        (H, Binding("h", "q", "", {"a": 1, "b": 2}), Binding("h", "q", "", {"a": 1})),
        (H, Binding("h", "q", "", {"a": 1}), Binding("h", "q", "", {"a": None})),
        (H, Binding("h", "q", "", {"a": 1, "b": 2}), Binding("h", "q", "", {"x-match": "any", "a": 1, "c": 3})),
        (H, Binding("h", "q", "", {"x-match": "any", "a": 1}), Binding("h", "q", "", {"x-match": "any", "a": 1, "c": 3})),
        (H, Binding("h", "q", "", {"a": 1}), Binding("h", "q", "")),
    ],
)
def test_a_binding_shadowed_by_a_broader_one(exchange: Exchange, narrow: Binding, broad: Binding) -> None:
    (finding,) = check(Topology((exchange,), (Q,), (narrow, broad)))
    assert (finding.kind, finding.subject) == ("shadowed binding", str(narrow))
    to_another_queue = Binding(broad.source, "r", broad.routing_key, broad.arguments)
    assert check(Topology((exchange,), (Q, Queue("r")), (narrow, to_another_queue))) == []


def test_two_bindings_that_mean_the_same_are_reported_once() -> None:
    bindings = (Binding("x", "q", "#.*"), Binding("x", "q", "*.#"), Binding("x", "q", "*.#.#"))
    assert len(check(Topology((X,), (Q,), bindings))) == 2


def test_a_binding_with_settings_is_not_shadowed() -> None:
    narrow = Binding("x", "q", "a.b", {"x-priority": 9})
    assert check(Topology((X,), (Q,), (narrow, Binding("x", "q", "a.#")))) == []


def test_a_headers_binding_that_can_never_match() -> None:
    never = Binding("h", "q", "", {"x-match": "any", "x-note": "no criterion"})
    assert kinds(Topology((H,), (Q,), (never,))) == [("never matches", str(never))]


def test_a_null_that_rabbitmq_lost_in_its_export() -> None:
    (finding,) = check(Topology((H,), (Q,), (Binding("h", "q", "", {"a": "undefined"}),)))
    assert (finding.level, finding.kind) == ("notice", "null lost in export")


def test_each_vhost_is_checked_by_itself() -> None:
    (finding,) = check(Topology((Exchange("x", vhost="shop"),), (), ()))
    assert (finding.vhost, finding.kind) == ("shop", "leads nowhere")


def test_ten_thousand_bindings_are_checked_in_one_go() -> None:
    bindings = tuple(Binding("x", f"q{n % 100}", f"a.b{n}.*") for n in range(10_000))
    assert check(Topology((X,), tuple(Queue(f"q{n}") for n in range(100)), bindings)) == []
