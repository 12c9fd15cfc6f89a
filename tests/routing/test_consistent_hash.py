"""The exchange type x-consistent-hash: its hash is fixed for ever, even, weighted, and moves few keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from itertools import permutations
from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq import Binding, Exchange, InvalidValueError, Queue, Router, Topology
from holtmq.routing.check import check
from holtmq.routing.consistent_hash import ConsistentHashMatcher
from holtmq.routing.draft import explain_with
from holtmq.table import FieldValue
from holtmq.topology.criteria import comparable

HASH = "x-consistent-hash"
KEYS = [f"customer.{number}" for number in range(20_000)]


def topology(*bindings: Binding, arguments: Mapping[str, FieldValue] | None = None) -> Topology:
    exchanges = dict.fromkeys([b.source for b in bindings] + [b.destination for b in bindings if not b.is_to_queue])
    queues = dict.fromkeys(binding.destination for binding in bindings if binding.is_to_queue)
    declared = tuple(Exchange(name, HASH, arguments=arguments or {}) for name in exchanges)
    return Topology(declared, tuple(map(Queue, queues)), bindings)


def hashing(weights: Mapping[str, int]) -> Router:
    return Router(topology(*(Binding("x", queue, str(weight)) for queue, weight in weights.items())))


def chosen(router: Router, keys: Iterable[str] = KEYS) -> list[str]:
    """Return the queue of each key, which is exactly one."""
    routes = [router.route("x", key) for key in keys]
    assert {len(route) for route in routes} == {1}
    return [route[0] for route in routes]


VECTORS = {
    "": "c",
    "a": "a",
    "customer.1": "c",
    "customer.2": "c",
    "customer.3": "c",
    "customer.17": "a",
    "orders.food": "b",
    "Zürich": "c",
    "日本": "b",
    "x" * 255: "c",
}
"""The queue of each key with the bindings a (weight 1), b (weight 1) and c (weight 2)."""


@pytest.mark.parametrize(("key", "queue"), VECTORS.items())
def test_a_key_has_the_same_queue_for_ever(key: str, queue: str) -> None:
    assert hashing({"a": 1, "b": 1, "c": 2}).route("x", key) == (queue,)


def test_the_order_of_declaration_does_not_matter() -> None:
    weights = [("a", 1), ("b", 3), ("c", 1)]
    assert len({tuple(chosen(hashing(dict(some)), KEYS[:500])) for some in permutations(weights)}) == 1


def test_equal_weights_have_equal_shares() -> None:
    counts = Counter(chosen(hashing({f"events-{number}": 1 for number in range(8)})))
    assert len(counts) == 8
    assert all(abs(count - 2_500) < 150 for count in counts.values()), counts


@pytest.mark.parametrize("weights", [{"a": 1, "b": 2, "c": 5}, {"a": 1_000_000, "b": 3_000_000}, {"a": 10, "b": 10, "c": 80}])
def test_a_share_is_proportional_to_its_weight(weights: dict[str, int]) -> None:
    counts, total = Counter(chosen(hashing(weights))), sum(weights.values())
    for queue, weight in weights.items():
        assert abs(counts[queue] - 20_000 * weight / total) < 300, counts


def test_only_the_ratio_of_weights_matters() -> None:
    ratios = [{"a": 1, "b": 3}, {"a": 7, "b": 21}, {"a": 1_431_655_765, "b": 4_294_967_295}]
    assert len({tuple(chosen(hashing(weights), KEYS[:2_000])) for weights in ratios}) == 1


def test_several_bindings_of_a_queue_add_up() -> None:
    several = topology(Binding("x", "a", "1"), Binding("x", "a", "2"), Binding("x", "a", "2", {"n": 1}), Binding("x", "b", "4"))
    assert chosen(Router(several), KEYS[:2_000]) == chosen(hashing({"a": 5, "b": 4}), KEYS[:2_000])


@pytest.mark.parametrize("weight", [1, 3])
def test_a_new_queue_takes_its_share_and_no_other_key_moves(weight: int) -> None:
    before = {f"events-{number}": 1 for number in range(8)}
    old, new = chosen(hashing(before)), chosen(hashing({**before, "events-8": weight}))
    moved = [to for since, to in zip(old, new, strict=True) if since != to]
    assert set(moved) == {"events-8"}
    assert abs(len(moved) - 20_000 * weight / (8 + weight)) < 300


def test_bindings_that_come_and_go_leave_the_hash_as_it_was() -> None:
    router = hashing({"a": 1, "b": 1, "c": 2})
    before = chosen(router, KEYS[:1_000])
    for name, key in (("d", "1"), ("e", "5")):
        router.declare_queue(Queue(name))
        router.bind(Binding("x", name, key))
    router.bind(Binding("x", "a", "7"))
    assert chosen(router, KEYS[:1_000]) == chosen(hashing({"a": 8, "b": 1, "c": 2, "d": 1, "e": 5}), KEYS[:1_000])
    router.unbind(Binding("x", "a", "7"))
    router.delete_queue("d")
    router.unbind(Binding("x", "e", "5"))
    assert chosen(router, KEYS[:1_000]) == before


@pytest.mark.parametrize("seed", range(3))
def test_a_router_that_lived_through_many_changes_chooses_as_a_new_one(seed: int) -> None:
    random, router, bound = Random(seed), Router(), set[Binding]()
    router.declare_exchange(Exchange("x", HASH))
    for number in range(12):
        router.declare_queue(Queue(f"q{number}"))
    for step in range(400):
        binding = Binding("x", f"q{random.randrange(12)}", str(random.choice((1, 1, 2, 7))), random.choice(({}, {"n": 1})))
        if binding in bound:
            router.unbind(binding)
            bound.remove(binding)
        else:
            router.bind(binding)
            bound.add(binding)
        if bound and step % 3 == 0:
            some = random.sample(KEYS[:300], 60)
            assert chosen(router, some) == chosen(Router(router.to_topology()), some)


def test_a_deleted_queue_gets_nothing_before_its_bindings_are_swept() -> None:
    router = hashing({"a": 1, "b": 1})
    removal = router.delete_queue("a", is_swept=False)
    assert set(chosen(router, KEYS[:100])) == {"b"}
    list(router.sweep(removal))
    assert set(chosen(router, KEYS[:100])) == {"b"}


@pytest.mark.parametrize(
    "key", ["", "0", "-1", "1.5", "a", " 1", "1 ", "1_0", "٣", "1e3", "0x10", "++1", "4294967296", "9" * 200]
)
def test_a_weight_that_is_not_a_positive_integer_is_refused(key: str) -> None:
    router = hashing({"a": 1})
    with pytest.raises(InvalidValueError, match="must be an integer from 1 to 4294967295, got"):
        router.bind(Binding("x", "a", key))
    assert len(router.registry.bindings()) == 1


def test_zeros_and_a_sign_before_a_weight_do_not_count() -> None:
    assert chosen(Router(topology(Binding("x", "a", "+01"), Binding("x", "b", "0" * 200 + "2"))), KEYS[:500]) == chosen(
        hashing({"a": 1, "b": 2}), KEYS[:500]
    )


def test_close_scores_are_compared_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floating-point logarithms may differ between machines, so they only decide what is clear."""
    weights = {"a": 2, "b": 3, "c": 3, "d": 50}
    expected = chosen(hashing(weights), KEYS[:300])
    monkeypatch.setattr("holtmq.routing.consistent_hash._CLOSE", float("inf"))
    with localcontext(prec=1):
        assert chosen(hashing(weights), KEYS[:300]) == expected


def test_one_of_several_exchanges_is_chosen_and_the_alternate_exchange_is_for_none() -> None:
    bindings = (
        Binding("x", "y", "1", {}, "exchange"), Binding("x", "q", "1"), Binding("y", "a", "1"), Binding("y", "b", "1"),
    )  # fmt: skip
    router = Router(topology(*bindings, arguments={"alternate-exchange": "amq.fanout"}))
    router.declare_queue(Queue("lost"))
    router.bind(Binding("amq.fanout", "lost"))
    counts = Counter(chosen(router))
    assert counts.keys() == {"q", "a", "b"}
    assert abs(counts["q"] - 10_000) < 300
    for binding in bindings[:2]:
        router.unbind(binding)
    assert router.route("x", "k") == ("lost",)


def test_cc_adds_no_queue_and_does_not_move_a_message() -> None:
    router = hashing({f"q{number}": 1 for number in range(10)})
    for key in KEYS[:50]:
        more: dict[str, FieldValue] = {"CC": [*KEYS[:10]], "BCC": ["a"]}
        assert router.route("x", key, more) == router.route("x", key)
        assert router.explain("x", key, more).queues == router.route("x", key)


def test_a_header_is_hashed_instead_of_the_key() -> None:
    bindings = [Binding("x", f"q{number}", "1") for number in range(10)]
    by_header, by_key = Router(topology(*bindings, arguments={"hash-header": "customer"})), Router(topology(*bindings))
    for number in range(200):
        assert by_header.route("x", f"k.{number % 7}", {"customer": str(number), "n": number}) == by_key.route("x", str(number))
        assert by_header.route("x", "", {"customer": number}) == by_key.route("x", str(number))
    for headers in (None, {}, {"customer": None}, {"customer": ""}, {"Customer": "7"}):
        assert by_header.route("x", "k", headers) == by_key.route("x", "")
    assert by_header.reads_headers("x")
    assert by_header.header_names() == {"customer"}
    assert "x" in by_header.keyless_exchanges()


def test_a_header_that_two_exchanges_read_is_part_of_the_signature_as_a_whole() -> None:
    """A headers exchange tests for one value; what it does not test for decides at the other exchange."""
    exchanges = (Exchange("start", "headers"), Exchange("x", HASH, arguments={"hash-header": "h"}))
    queues = [Queue(f"q{number}") for number in range(10)]
    bindings = [Binding("x", queue.name, "1") for queue in queues]
    links = (Binding("start", "x", "", {}, "exchange"), Binding("start", "q0", "", {"h": "1"}))
    router = Router(Topology(exchanges, tuple(queues), (*bindings, *links)))
    for text in map(str, range(100)):
        own = router.route("x", "", {"h": text})
        assert router.route("start", "", {"h": text}) == tuple(sorted({*own, *(["q0"] if text == "1" else [])}))


field_values: st.SearchStrategy[FieldValue] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=3), st.binary(max_size=3), st.decimals(allow_nan=False, allow_infinity=False),
        st.datetimes(timezones=st.just(UTC)), st.sampled_from(["\udc80", "\ud800", b"\x80", Decimal("1E+9999999")]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)  # fmt: skip


@given(field_values, field_values)
def test_any_header_value_can_be_hashed_and_equal_values_have_equal_hashes(one: FieldValue, other: FieldValue) -> None:
    matcher = ConsistentHashMatcher("h")
    for number in range(50):
        matcher.add(Binding("x", f"q{number}", "1"))
    chosen_of = [set(matcher.match("", {"h": value})) for value in (one, other)]
    assert chosen_of[0] == chosen_of[1] or comparable(one) != comparable(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0), (Decimal("1.0"), Decimal("1.00")), (Decimal("0.0"), Decimal("-0")), ({}, []), (b"a", "a"),
        (b"\xff", "\udcff"),
        (datetime(2024, 1, 31, tzinfo=UTC), 1_706_659_200), ({"a": 1, "b": [2]}, {"b": [2], "a": 1}), (True, "true"), (7, "7"),
    ],
)  # fmt: skip
def test_values_that_hash_alike(one: FieldValue, other: FieldValue) -> None:
    router = Router(topology(*(Binding("x", f"q{n}", "1") for n in range(1_000)), arguments={"hash-header": "h"}))
    assert router.route("x", "", {"h": one}) == router.route("x", "", {"h": other})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hash-header": 1}, "argument 'hash-header' must be the name of a header, got integer 1"),
        ({"hash-property": "message_id"}, "argument 'hash-property' is not supported"),
    ],
)
def test_invalid_arguments_are_refused_but_a_file_with_them_can_be_read(arguments: dict[str, FieldValue], message: str) -> None:
    exchange = Exchange("x", HASH, arguments=arguments)
    with pytest.raises(InvalidValueError, match=message):
        Router().declare_exchange(exchange)
    read = Topology((exchange, Exchange("y", "fanout")), (Queue("q"),), (Binding("x", "q", "1"), Binding("y", "q")))
    assert Router(read).route("y", "") == ("q",)
    with pytest.raises(InvalidValueError, match=message):
        Router(read).route("x", "k")
    assert [(found.kind, found.subject) for found in check(read)] == [("unsupported argument", "exchange 'x'")]


def test_a_header_that_is_nested_too_deeply_is_refused() -> None:
    nested: list[FieldValue] = []
    for _ in range(5_000):
        nested = [nested]
    router = Router(topology(Binding("x", "q", "1"), arguments={"hash-header": "h"}))
    router.bind(Binding("amq.headers", "x", "", {"h": 1}, "exchange"))
    for exchange in ("x", "amq.headers"):
        with pytest.raises(InvalidValueError, match="nested too deeply"):
            router.route(exchange, "", {"h": nested})


def test_an_explanation_says_hash_slot_and_weight() -> None:
    router = hashing({"a": 1, "b": 1, "c": 2})
    explained = router.explain("x", "customer.17")
    queue = explained.queues[0]
    weight = {"a": 1, "b": 1, "c": 2}[queue]
    expected = f"the routing key has the hash 46a61686, slot 5766, which belongs to queue '{queue}' (weight {weight} of 4)"
    assert [match.reason for match in explained.hops[0].matches] == [expected]
    assert f"weight {weight}" in str(explained)
    assert "· 2 other bindings are not chosen" in str(explained)
    draft = explain_with(router.to_topology(), [Binding("x", "a", "1000000")], "x", "customer.17", {})
    assert draft.queues == ("a",)
    assert "(weight 1000001 of 1000004)" in draft.hops[0].matches[0].reason


def test_a_second_binding_of_a_queue_is_not_redundant() -> None:
    assert not check(topology(Binding("x", "a", "1"), Binding("x", "a", "2"), Binding("x", "b", "2")))


def test_ten_thousand_bindings_with_weights_of_their_own_are_still_routed() -> None:
    random = Random(1)
    weights = {f"q{number}": random.randrange(1, 2**32) for number in range(10_000)}
    router = hashing(weights)
    assert all(queue in weights for queue in chosen(router, KEYS[:20]))


def test_the_draws_follow_the_specification() -> None:
    """Two queues of different weight, by the formula in the documentation."""
    from hashlib import blake2b
    from zlib import crc32

    def number(text: str) -> int:
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    router, weights = hashing({"a": 2, "b": 7}), {"a": 2, "b": 7}
    for key in KEYS[:500]:
        slot = crc32(key.encode()) % 65_536
        draws = {name: number(f"queue:{name}") * number(str(slot)) % 2**64 / 2**64 for name in weights}
        scores = {name: -log(1 - draws[name]) / weight for name, weight in weights.items()}
        assert router.route("x", key) == (min(scores, key=scores.__getitem__),)
