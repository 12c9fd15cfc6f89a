"""The topic trie, beyond the table of cases: its size, its cost and its explanations."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import example, given

from holtmq import Binding
from holtmq.routing.pattern import judge_pattern, normalise, split
from holtmq.routing.topic import TopicMatcher
from tests.conformance.naive import fits
from tests.conformance.strategies import keys, patterns


def matcher_of(*bound: str) -> TopicMatcher:
    matcher = TopicMatcher()
    for pattern in bound:
        matcher.add(Binding("x", "q", pattern))
    return matcher


@given(patterns, keys)
@example("#.a.#", "a.a")
@example("#.a.#.a", "a.b.a")
@example("a.#.#.b", "a.b")
def test_trie_verdict_and_naive_matcher_agree(pattern: str, key: str) -> None:
    expected = fits(tuple(split(pattern)), tuple(split(key)))
    assert len(matcher_of(pattern).match(key, {})) == expected
    assert judge_pattern(pattern, key).is_match == expected


@given(patterns, keys)
def test_a_normal_pattern_means_the_same(pattern: str, key: str) -> None:
    words = normalise(split(pattern))
    assert fits(tuple(words), tuple(split(key))) == fits(tuple(split(pattern)), tuple(split(key)))
    assert not any(word == "#" and follower in ("#", "*") for word, follower in pairwise(words))


def test_removing_every_binding_leaves_an_empty_trie() -> None:
    bound = ["a.b.c", "a.b", "a.*.c", "a.#", "#", "#.a.#.b", "", "a.b.#.c", "*.*"]
    matcher = matcher_of(*bound)
    for pattern in reversed(bound):
        matcher.remove(Binding("x", "q", pattern))
    assert pickle.dumps(matcher) == pickle.dumps(TopicMatcher())


def test_removing_one_binding_leaves_those_that_share_its_words() -> None:
    matcher = matcher_of("a.b", "a.b.c", "a.*")
    matcher.remove(Binding("x", "q", "a.b"))
    assert [binding.routing_key for binding in matcher.match("a.b", {})] == ["a.*"]
    assert [binding.routing_key for binding in matcher.match("a.b.c", {})] == ["a.b.c"]


def test_many_hashes_cost_a_bounded_number_of_steps() -> None:
    """Steps are counted, not timed: the words of the key are compared at most once at each node of the trie."""
    comparisons = 0

    class CountedWord(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return str.__eq__(self, other)

    matcher = matcher_of(".".join(["#.a"] * 50))
    assert len(matcher._walk([CountedWord("a")] * 100)) == 1  # noqa: SLF001  # match() would make plain words
    nodes = 2 * 50 + 1
    assert 100 < comparisons <= 100 * nodes


@pytest.mark.parametrize(
    ("pattern", "key", "reason"),
    [
        ("a.b", "a.b", "all words are equal"),
        ("", "", "all words are equal"),
        ("a.*.c", "a.b.c", "* = b"),
        ("*.#", "a.b.c", "* = a, # = b.c"),
        ("a.#", "a", "# = nothing"),
        ("#.x.#", "a.x.b.x", "# = a.x.b, # = nothing"),
        ("a.*", "a.", "* = (empty word)"),
    ],
)
def test_a_match_says_what_the_wildcards_stand_for(pattern: str, key: str, reason: str) -> None:
    verdict = judge_pattern(pattern, key)
    assert (verdict.is_match, verdict.reason) == (True, reason)


@pytest.mark.parametrize(
    ("pattern", "key", "reason"),
    [
        ("orders.us.#", "orders.eu.laptops", "word 2 is 'eu', expected 'us'"),
        ("orders.*.laptops", "orders.eu", "the key ends after 2 words, expected 'laptops' next"),
        ("orders.*", "orders", "the key ends after 1 word, expected any word next"),
        ("orders.*", "orders.a.b", "the pattern ends, but the key continues with 'b'"),
        ("orders.#.premium", "orders.a.cheap", "word 3 is 'cheap', expected 'premium'"),
        ("#.b.#.c", "a.a", "no word 'b' after '#'"),
        ("#.x.y", "a.x.z", "word 3 is 'z', expected 'y'"),
        ("a.#.b", "a", "the key ends after 1 word, expected 'b' next"),
        ("", "a", "the pattern ends, but the key continues with 'a'"),
        ("a", "", "the key ends after 0 words, expected 'a' next"),
    ],
)
def test_a_miss_says_where_pattern_and_key_part(pattern: str, key: str, reason: str) -> None:
    verdict = judge_pattern(pattern, key)
    assert (verdict.is_match, verdict.reason) == (False, reason)


def test_nearer_misses_are_closer() -> None:
    key = "orders.eu.laptops.premium"
    order = ["orders.eu.laptops.cheap", "orders.eu.phones.#", "orders.us.laptops", "logs.#"]
    closeness = [judge_pattern(pattern, key).closeness for pattern in order]
    assert closeness == sorted(closeness, reverse=True)
    assert judge_pattern("orders.food", "order.food").closeness > judge_pattern("logs.food.x", "order.food").closeness
