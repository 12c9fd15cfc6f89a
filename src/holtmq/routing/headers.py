"""The headers exchange type: the arguments of a binding are criteria for the headers of a message.

Bindings with x-match `all` are grouped by the names of their criteria and indexed within a group by their values, so a
message costs one lookup per group and not one per binding. Bindings with x-match `any` are indexed by each criterion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import TypeAlias, TypeVar

from holtmq.routing.matcher import Matcher, Verdict
from holtmq.table import FieldValue, describe
from holtmq.topology import Binding
from holtmq.topology.criteria import PRESENT, X_MATCH, Criteria, comparable

K = TypeVar("K")
Names: TypeAlias = tuple[str, ...]
_MISSING = object()


class _Group:
    """The `all` bindings that compare the same headers and require the presence of the same other headers."""

    __slots__ = ("by_values", "compared", "present")

    def __init__(self, compared: Names, present: Names) -> None:
        self.compared = compared
        self.present = present
        self.by_values: dict[tuple[Hashable, ...], set[Binding]] = {}

    def match(self, headers: Mapping[str, Hashable]) -> Collection[Binding]:
        """Return the bindings of the group that match these comparable header values."""
        for name in self.present:
            if name not in headers:
                return ()
        return self.by_values.get(tuple([headers.get(name, _MISSING) for name in self.compared]), ())


class HeadersMatcher(Matcher):
    """The bindings of a headers exchange, by their criteria."""

    type = "headers"
    reads_routing_key = False

    def __init__(self) -> None:
        self._without_criteria: set[Binding] = set()
        self._groups: dict[str, dict[tuple[Names, Names], _Group]] = {}
        """The groups of `all` bindings by one of their names: a message without that header skips them."""
        self._any: dict[tuple[str, Hashable], set[Binding]] = {}
        self._values: dict[str, Counter[Hashable]] = {}

    @property
    def header_values(self) -> Mapping[str, Collection[Hashable]]:
        return self._values

    def validate(self, binding: Binding) -> None:
        Criteria.of(binding.arguments)

    def add(self, binding: Binding) -> None:
        criteria = Criteria.of(binding.arguments)
        for name, value in criteria.tests.items():
            self._values.setdefault(name, Counter())[value] += 1
        if criteria.is_any:
            for test in criteria.tests.items():
                self._any.setdefault(test, set()).add(binding)
        elif criteria.tests:
            key, anchor, values = _group_key(criteria)
            group = self._groups.setdefault(anchor, {}).setdefault(key, _Group(*key))
            group.by_values.setdefault(values, set()).add(binding)
        else:
            self._without_criteria.add(binding)

    def remove(self, binding: Binding) -> None:
        criteria = Criteria.of(binding.arguments)
        for name, value in criteria.tests.items():
            self._forget_value(name, value)
        if criteria.is_any:
            for test in criteria.tests.items():
                _discard(self._any, test, binding)
        elif criteria.tests:
            key, anchor, values = _group_key(criteria)
            groups = self._groups[anchor]
            _discard(groups[key].by_values, values, binding)
            if not groups[key].by_values:
                del groups[key]
            if not groups:
                del self._groups[anchor]
        else:
            self._without_criteria.remove(binding)

    def _forget_value(self, name: str, value: Hashable) -> None:
        counts = self._values[name]
        counts[value] -= 1
        if not counts[value]:
            del counts[value]
        if not counts:
            del self._values[name]

    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        known = {name: comparable(value) for name, value in headers.items() if name in self._values}
        found = set(self._without_criteria)
        for name, value in known.items():
            for group in self._groups.get(name, {}).values():
                found.update(group.match(known))
            if self._any:
                found.update(self._any.get((name, value), ()))
                found.update(self._any.get((name, PRESENT), ()))
        return found

    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        criteria = Criteria.of(binding.arguments)
        if not criteria.tests:
            return _judge_without_criteria(binding, criteria)
        misses = {name: _miss(name, binding, headers) for name in criteria.tests}
        missed = [miss for miss in misses.values() if miss is not None]
        held = [_describe_match(name, binding) for name, miss in misses.items() if miss is None]
        if criteria.is_any:
            return Verdict(True, f"any: {', '.join(held)}") if held else Verdict(False, "; ".join(missed), 0.25)
        if missed:
            return Verdict(False, "; ".join(missed), max(0.25, len(held) / len(criteria.tests)))
        return Verdict(True, f"all: {', '.join(held)}")

    def covering(self, binding: Binding) -> Collection[Binding]:
        """Return the bindings that require less: a subset of the criteria with `all`, a superset with `any`."""
        criteria = Criteria.of(binding.arguments)
        if not criteria.tests:
            return {binding, *self._without_criteria}
        found = {binding, *self._without_criteria}
        for name in criteria.tests:
            for group in self._groups.get(name, {}).values() if not criteria.is_any else ():
                found.update(_covering_in(group, criteria))
        for test in criteria.tests.items() if not criteria.is_any or len(criteria.tests) == 1 else ():
            found.update(self._any.get(test, ()), self._any.get((test[0], PRESENT), ()))
        return found


def _group_key(criteria: Criteria) -> tuple[tuple[Names, Names], str, tuple[Hashable, ...]]:
    """Return the group of an `all` binding, the name that the group is stored under, and its key within the group."""
    compared = tuple(sorted(name for name, value in criteria.tests.items() if value is not PRESENT))
    present = tuple(sorted(name for name, value in criteria.tests.items() if value is PRESENT))
    return (compared, present), (compared or present)[0], tuple(criteria.tests[name] for name in compared)


def _covering_in(group: _Group, criteria: Criteria) -> Collection[Binding]:
    if any(name not in criteria.tests for name in group.present):
        return ()
    return group.by_values.get(tuple(criteria.tests.get(name, _MISSING) for name in group.compared), ())


def _miss(name: str, binding: Binding, headers: Mapping[str, FieldValue]) -> str | None:
    """Return why a criterion does not hold, or None if it does."""
    wanted = binding.arguments[name]
    if name not in headers:
        return f"{name} is missing" + ("" if wanted is None else f", expected {describe(wanted)}")
    if wanted is None or comparable(headers[name]) == comparable(wanted):
        return None
    return f"{name} is {describe(headers[name])}, expected {describe(wanted)}"


def _describe_match(name: str, binding: Binding) -> str:
    wanted = binding.arguments[name]
    return f"{name} is present" if wanted is None else f"{name} is {describe(wanted)}"


def _judge_without_criteria(binding: Binding, criteria: Criteria) -> Verdict:
    mode = str(binding.arguments.get(X_MATCH, "all"))
    if criteria.is_any:
        return Verdict(False, f"x-match is {mode} and there are no criteria: no message matches", 0.25)
    return Verdict(True, f"x-match is {mode} and there are no criteria: every message matches")


def _discard(index: dict[K, set[Binding]], key: K, binding: Binding) -> None:
    bindings = index[key]
    bindings.remove(binding)
    if not bindings:
        del index[key]
