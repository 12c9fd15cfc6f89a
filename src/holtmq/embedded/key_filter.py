"""Topic patterns as a filter of routing keys, by the rules of a topic exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from holtmq.routing.topic import TopicMatcher
from holtmq.topology import Binding

KEYS_KEPT = 1000


def key_filter(patterns: Sequence[str] | None) -> Callable[[str], bool]:
    """Return a function that tells whether a routing key matches one of the patterns. None matches every key."""
    if patterns is None:
        return lambda _key: True
    matcher = TopicMatcher()
    for pattern in patterns:
        matcher.add(Binding("", "", pattern))

    @lru_cache(KEYS_KEPT)  # a stream has few keys compared with its messages
    def matches(key: str) -> bool:
        return bool(matcher.match(key, {}))

    return matches
