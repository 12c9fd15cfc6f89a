"""Classes of routing keys that no binding can distinguish, found on whole columns. Runs on the executors.

A topic exchange compares only the words that occur in a pattern, each at its place: as the second word, or anywhere if there
is a `#` before it. If no pattern has 17 or 18 as its second word, `order.17.paid` and `order.18.paid` take the same route, and
one key represents both. If nearly every message has its own key, this leaves few keys to route: a route costs microseconds,
finding a key's class a tenth of that. An x-consistent-hash exchange distinguishes no more than 65,536 slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holtmq.routing import Router
from holtmq.routing.consistent_hash import SLOTS, slot_of
from holtmq.routing.pattern import split
from holtmq.table import SHORT_STRING_BYTES
from holtmq.topology import DEFAULT_EXCHANGE

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
FIRST_KEYS_KEPT = 400_000
MOST_WORDS = 128
"""A key has at most 255 bytes, and therefore at most this many words that are not empty."""


class KeyClasses:
    """What the bindings of a vhost can distinguish: the words of topic patterns, and keys that are compared as a whole."""

    def __init__(self, router: Router) -> None:
        registry = router.registry
        topics = {exchange.name for exchange in registry.exchanges.values() if exchange.type == "topic"}
        patterns = {binding.routing_key for binding in registry.bindings() if binding.source in topics}
        words = sorted({word for pattern in patterns for word in split(pattern)})
        whole = {binding.routing_key for binding in registry.bindings() if binding.source not in topics}
        whole |= {binding.routing_key for binding in router.bindings_from(DEFAULT_EXCHANGE)}
        self._words = pa.array(words, pa.string())
        self._words_and_other = pa.array([*words, _unused_word({*words, *whole})], pa.string())
        self._has_effect = _effects(patterns, words)
        self._whole = pa.array(sorted(whole | {""}), pa.string())  # "" is the only key without words
        self._first: dict[tuple[str, int], str] | None = {} if router.hashes_routing_keys() else None
        """If an exchange hashes routing keys: the first key of each class and slot, which represents the others."""
        random = np.random.default_rng(20_260_101)
        self._word_codes = random.integers(1, 2**63, len(words) + 1)
        self._weights = random.integers(1, 2**62, MOST_WORDS) * 2 + 1

    def find(self, keys: pa.Array) -> tuple[pa.Array, Integers]:
        """Return one representative per class, always the same ones, and for each key the index of its representative."""
        representatives, of_key = self._find_by_words(keys)
        if self._first is None:
            return representatives, of_key
        slots = np.fromiter(map(slot_of, keys.cast(pa.binary()).to_pylist()), np.int64, len(keys))
        encoded = pa.array(of_key * SLOTS + slots).dictionary_encode()
        of_key = encoded.indices.to_numpy().astype(np.int64)
        if len(self._first) + len(encoded.dictionary) > FIRST_KEYS_KEPT:
            self._first.clear()
        classes = [divmod(code, SLOTS) for code in encoded.dictionary.to_pylist()]
        words, first_keys = representatives.to_pylist(), keys.take(pa.array(_first_rows(of_key))).to_pylist()
        found = [self._first.setdefault((words[c], slot), key) for (c, slot), key in zip(classes, first_keys, strict=True)]
        return pa.array(found, keys.type), of_key

    def _find_by_words(self, keys: pa.Array) -> tuple[pa.Array, Integers]:
        """Do the same as if no exchange hashed keys."""
        is_own = pc.or_(pc.is_in(keys, self._whole), pc.greater(pc.binary_length(keys), SHORT_STRING_BYTES))
        is_own = is_own.to_numpy(zero_copy_only=False)
        split_keys = pc.split_pattern(keys, ".")
        starts = split_keys.offsets.to_numpy()[:-1].astype(np.int64)
        lengths = pc.list_value_length(split_keys).to_numpy(zero_copy_only=False).astype(np.int64)
        words = pc.index_in(split_keys.values, self._words).fill_null(len(self._words)).to_numpy()
        positions = np.arange(len(words)) - np.repeat(starts, lengths)
        has_effect = self._has_effect[words, np.minimum(positions, self._has_effect.shape[1] - 1)]
        words = np.where(has_effect, words, len(self._words))
        hashes = np.add.reduceat(self._word_codes[words] * self._weights[np.minimum(positions, MOST_WORDS - 1)], starts)
        hashes[is_own] = np.flatnonzero(is_own)
        of_key = pa.array(hashes).dictionary_encode().indices.to_numpy().astype(np.int64)  # quicker than by sorting
        chosen = _first_rows(of_key)
        chosen_of_key = chosen[of_key]
        if not self._are_alike(chosen_of_key, is_own, starts, lengths, words, positions):
            return keys, np.arange(len(keys))
        return self._representatives(keys, chosen, is_own, starts, lengths, words), of_key

    def _representatives(
        self, keys: pa.Array, chosen: Integers, is_own: Integers, starts: Integers, lengths: Integers, words: Integers
    ) -> pa.Array:
        """Return the representative of each class: its words, with a placeholder for those that no pattern contains."""
        offsets = np.concatenate(([0], np.cumsum(lengths[chosen])))
        at = np.repeat(starts[chosen] - offsets[:-1], lengths[chosen]) + np.arange(offsets[-1])
        named = self._words_and_other.take(pa.array(words[at]))
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), named), ".")
        return pc.if_else(pa.array(is_own[chosen]), keys.take(pa.array(chosen)), joined)

    @staticmethod
    def _are_alike(
        chosen_of_key: Integers, is_own: Integers, starts: Integers, lengths: Integers, words: Integers, positions: Integers
    ) -> bool:
        """Return whether each key has the same words as the chosen key of its class: hashes may collide."""
        same_length = lengths == lengths[chosen_of_key]
        if not same_length.all() or (is_own[chosen_of_key] & (chosen_of_key != np.arange(len(chosen_of_key)))).any():
            return False
        there = np.repeat(starts[chosen_of_key], lengths) + positions
        return bool((words == words[there]).all())


def _effects(patterns: Iterable[str], words: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether some pattern compares a word, a row, at a position of a key, a column. The last is for all later ones.

    A word that follows a `#` may be at any position. The last row is for words that occur in no pattern.
    """
    split_patterns = [split(pattern) for pattern in patterns]
    fixed = [pattern[: pattern.index("#")] if "#" in pattern else pattern for pattern in split_patterns]
    numbers = {word: number for number, word in enumerate(words)}
    effects = np.zeros((len(words) + 1, max(map(len, fixed), default=0) + 1), dtype=np.bool_)
    for pattern, start in zip(split_patterns, fixed, strict=True):
        effects[[numbers[word] for word in start], range(len(start))] = True
        effects[[numbers[word] for word in pattern[len(start) :]]] = True
    return effects


def _first_rows(of_key: Integers) -> Integers:
    """Return for each class the first row with a key of it."""
    first = np.empty(of_key.max() + 1, dtype=np.int64)
    first[of_key[::-1]] = np.arange(len(of_key) - 1, -1, -1)  # the last assignment counts
    return first


def _unused_word(texts: set[str]) -> str:
    """Return a word that occurs in none of these texts."""
    word = "?"
    while any(word in text for text in texts):
        word += "?"
    return word
