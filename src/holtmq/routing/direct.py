"""The direct exchange type: a binding matches if its routing key equals that of the message."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holtmq.routing.matcher import Matcher, Verdict
from holtmq.routing.pattern import likeness
from holtmq.table import FieldValue
from holtmq.topology import Binding


class DirectMatcher(Matcher):
    """The bindings of a direct exchange, by routing key."""

    type = "direct"

    def __init__(self) -> None:
        self._by_key: dict[str, set[Binding]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, set()).add(binding)

    def remove(self, binding: Binding) -> None:
        bindings = self._by_key[binding.routing_key]
        bindings.remove(binding)
        if not bindings:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        return self._by_key.get(routing_key, ())

    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        return judge_key(binding.routing_key, routing_key)

    def covering(self, binding: Binding) -> Collection[Binding]:
        return self._by_key[binding.routing_key]


def judge_key(expected: str, routing_key: str) -> Verdict:
    """Compare a routing key with that of a binding, and describe the difference."""
    if routing_key == expected:
        return Verdict(True, "the keys are equal")
    if routing_key.strip() == expected.strip():
        return Verdict(False, f"the key differs in whitespace: {routing_key!r}, expected {expected!r}", 0.95)
    if routing_key.casefold() == expected.casefold():
        return Verdict(False, f"the key differs in case: {routing_key!r}, expected {expected!r}", 0.95)
    return Verdict(False, f"the key is {routing_key!r}, expected {expected!r}", likeness(expected, routing_key) * 0.9)
