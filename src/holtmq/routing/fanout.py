"""The fanout exchange type: every binding matches every message, whatever its routing key and arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holtmq.routing.matcher import Matcher, Verdict
from holtmq.table import FieldValue
from holtmq.topology import Binding


class FanoutMatcher(Matcher):
    """The bindings of a fanout exchange."""

    type = "fanout"
    reads_routing_key = False

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        """In order: tens of thousands of bindings are visited, and their queues sorted, in half the time of a set's order."""

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]

    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        return self._bindings

    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        return Verdict(True, "fanout matches every message")

    def covering(self, binding: Binding) -> Collection[Binding]:
        return self._bindings
