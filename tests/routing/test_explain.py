"""Explanations of routes: as values, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from holtmq import Binding, Exchange, Explanation, Queue, Router, Topology
from holtmq.cli.demo_command import shop
from holtmq.routing.explanation import ExplainedHop


@pytest.fixture
def router() -> Router:
    return Router(shop())


def hop(explanation: Explanation, exchange: str) -> ExplainedHop:
    return next(hop for hop in explanation.hops if hop.exchange.name == exchange)


def test_each_hop_tells_how_the_message_came_there(router: Router) -> None:
    explanation = router.explain("orders", "orders.electronics.laptops.premium", {"vip": True})
    assert [(hop.exchange.name, hop.cause) for hop in explanation.hops] == [
        ("orders", "published here"),
        ("audit", "from orders via #"),
        ("desks", "from orders via orders.#"),
    ]
    assert explanation.queues == ("audit-log", "laptops", "premium", "vip-desk")


def test_matches_say_on_what(router: Router) -> None:
    matches = hop(router.explain("orders", "orders.toys.laptops.premium"), "orders").matches
    reasons = {(match.binding.routing_key, match.binding.destination): match.reason for match in matches}
    assert reasons["orders.*.laptops.#", "laptops"] == "* = toys, # = premium"
    assert reasons["orders.#.premium", "premium"] == "# = toys.laptops"


def test_near_misses_say_why_not_and_the_nearest_comes_first(router: Router) -> None:
    misses = hop(router.explain("orders", "orders.electronics.laptops.cheap"), "orders").near_misses
    assert [(miss.binding.routing_key, miss.reason) for miss in misses] == [
        ("orders.electronics.laptops.premium", "word 4 is 'cheap', expected 'premium'"),
        ("orders.food", "word 2 is 'electronics', expected 'food'"),
        ("orders.#.premium", "word 4 is 'cheap', expected 'premium'"),
    ]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "vip is missing, expected boolean true"),
        ({"vip": False}, "vip is boolean false, expected boolean true"),
        ({"vip": "true"}, "vip is string 'true', expected boolean true"),
        ({"vip": 1}, "vip is integer 1, expected boolean true"),
    ],
)
def test_a_headers_miss_names_the_missing_different_or_mistyped_header(
    router: Router, headers: dict[str, bool], reason: str
) -> None:
    (miss,) = hop(router.explain("orders", "orders.food", headers), "desks").near_misses
    assert miss.reason == reason


def test_a_queue_reached_twice_is_said_to_get_one_copy(router: Router) -> None:
    matches = hop(router.explain("orders", "orders.electronics.laptops.premium"), "orders").matches
    notes = [match.note for match in matches if match.binding.destination == "laptops"]
    assert notes == [None, "already reached: the queue gets one copy"]


def test_a_cycle_is_said_to_be_cut(router: Router) -> None:
    matches = hop(router.explain("orders", "orders.food"), "audit").matches
    assert [match.note for match in matches if match.binding.destination == "orders"] == [
        "already visited: the cycle ends here"
    ]


def test_a_diamond_is_no_cycle() -> None:
    links = [Binding(a, b, destination_type="exchange") for a, b in ("ab", "ac", "bd", "cd")]
    exchanges = tuple(Exchange(name, "fanout") for name in "abcd")
    explanation = Router(Topology(exchanges, (Queue("q"),), (*links, Binding("d", "q")))).explain("a", "k")
    assert [match.note for match in hop(explanation, "c").matches] == ["already visited"]
    assert explanation.queues == ("q",)


def test_the_use_of_an_alternate_exchange_is_told() -> None:
    exchange = Exchange("x", "direct", arguments={"alternate-exchange": "ae"})
    router = Router(Topology((exchange, Exchange("ae", "fanout")), (Queue("q"),), (Binding("ae", "q"),)))
    explanation = router.explain("x", "k")
    assert hop(explanation, "x").note == "no binding matches: the message goes to the alternate exchange 'ae'"
    assert hop(explanation, "ae").cause == "alternate exchange of x"


@pytest.mark.parametrize(
    ("alternate", "note"),
    [
        (None, "no binding matches, and there is no alternate exchange"),
        ("gone", "no binding matches, and the alternate exchange 'gone' does not exist"),
        ("x", "no binding matches, and the alternate exchange 'x' has already been visited"),
    ],
)
def test_the_end_of_the_road_is_told(alternate: str | None, note: str) -> None:
    arguments = {"alternate-exchange": alternate} if alternate else {}
    explanation = Router(Topology((Exchange("x", arguments=arguments),))).explain("x", "k")
    assert explanation.hops[-1].note == note
    assert "No queue: the message is dropped" in str(explanation)


def test_the_default_exchange_explains_itself(router: Router) -> None:
    (only,) = router.explain("", "laptops").hops
    assert [match.reason for match in only.matches] == ["every queue is bound with its own name"]
    (only,) = router.explain("", "Laptops").hops
    assert only.near_misses[0].reason == "the key differs in case: 'Laptops', expected 'laptops'"


def test_the_default_exchange_as_alternate_is_said_to_lead_nowhere() -> None:
    router = Router(Topology((Exchange("x", arguments={"alternate-exchange": ""}),), (Queue("k"),)))
    assert (
        router.explain("x", "k").hops[-1].note == "the default exchange routes nothing when it is used as an alternate exchange"
    )


def test_with_cc_each_match_names_the_key_that_made_it(router: Router) -> None:
    explanation = router.explain("orders", "nothing", {"CC": ["orders.food"]})
    food = next(match for match in hop(explanation, "orders").matches if match.binding.destination == "food")
    assert food.reason == "all words are equal (key 'orders.food')"


def test_settings_given_by_a_binding_are_told(router: Router) -> None:
    assert "premium (priority 9 from the binding)" in str(router.explain("orders", "orders.premium"))


def test_thousands_of_bindings_show_the_nearest_few_and_count_the_rest() -> None:
    bindings = tuple(Binding("x", "q", f"a.b.c{n}") for n in range(2000)) + tuple(
        Binding("x", "q", f"z{n}.y.x") for n in range(2000)
    )
    explanation = Router(Topology((Exchange("x", "topic"),), (Queue("q"),), bindings)).explain("x", "a.b.d")
    assert len(explanation.hops[0].near_misses) == 5
    assert "3995 other bindings do not come close" in str(explanation)


def test_it_prints_as_plain_text(router: Router) -> None:
    text = str(router.explain("orders", "orders.food", {"vip": False}))
    assert text == EXPECTED.strip("\n")


EXPECTED = """
orders.food to exchange orders
  header vip: boolean false

1. orders (topic) published here
   ✓  #                                   → exchange audit  # = orders.food
   ✓  orders.#                            → exchange desks  # = food
   ✓  orders.food                         → food            all words are equal
   ✗  orders.#.premium                    → premium         word 2 is 'food', expected 'premium'
   ✗  orders.*.laptops.#                  → laptops         the key ends after 2 words, expected 'laptops' next
   ✗  orders.electronics.laptops.premium  → laptops         word 2 is 'food', expected 'electronics'

2. audit (fanout) from orders via #
   ✓  every message  → exchange orders  fanout matches every message; already visited: the cycle ends here
   ✓  every message  → audit-log        fanout matches every message

3. desks (headers) from orders via orders.#
   ✗  all: vip=true  → vip-desk  vip is boolean false, expected boolean true
   → no binding matches, and there is no alternate exchange

2 queues: audit-log, food
"""


def test_long_rules_names_and_reasons_are_wrapped_within_their_columns() -> None:
    key, name = ".".join(f"word{n}" for n in range(20)), "q" * 60
    bindings = (Binding("x", name, key), Binding("x", "short", "#"))
    explanation = Router(Topology((Exchange("x", "topic"),), (Queue(name), Queue("short")), bindings)).explain("x", key)
    title, _, hop_title, *rows, _, outcome = str(explanation).splitlines()
    assert title.startswith(key)
    assert hop_title == "1. x (topic) published here"
    assert outcome == f"2 queues: {name}, short"
    assert max(map(len, rows)) <= 120
    assert "".join(row[6:54].strip() for row in rows) == "#" + key
    assert "".join(row[56:96].strip() for row in rows) == f"→ short→ {name}"


def test_names_that_look_like_markup_are_printed_as_they_are() -> None:
    name = "[bold]q[/bold]"
    router = Router(Topology((Exchange(name, "topic"),), (Queue(name),), (Binding(name, name, f"{name}.#"),)))
    assert str(router.explain(name, f"{name}.x")).count(name) == 6


def test_as_json_it_holds_the_same(router: Router) -> None:
    document = json.loads(json.dumps(router.explain("orders", "orders.premium", {"vip": True}).to_dict()))
    assert document["queues"] == ["audit-log", "premium", "vip-desk"]
    assert document["entries"] == {"premium": {"priority": 9, "ttl_ms": None}}
    assert document["hops"][0]["matches"][0] == {
        "destination_type": "exchange",
        "destination": "audit",
        "routing_key": "#",
        "arguments": {},
        "reason": "# = orders.premium",
        "note": None,
    }
    assert {miss["routing_key"] for miss in document["hops"][0]["near_misses"]} >= {"orders.food"}
