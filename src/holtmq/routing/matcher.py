"""The interface of an exchange type: which bindings of an exchange match a message, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from holtmq.table import FieldValue
from holtmq.topology import Binding

NO_HEADERS: Mapping[str, FieldValue] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a binding matches a message, the reason, and for a mismatch how close it is (0 to 1)."""

    is_match: bool
    reason: str
    closeness: float = 1.0


class Matcher(ABC):
    """The bindings of one exchange, indexed for its type. Each exchange type is a subclass in a module of its own."""

    type: ClassVar[str]
    reads_routing_key: ClassVar[bool] = True

    @property
    def header_values(self) -> Mapping[str, Collection[Hashable]]:
        """The headers that affect matching, each with the comparable values that bindings test for."""
        return {}

    def validate(self, binding: Binding) -> None:  # noqa: B027  # most types accept any binding
        """Raise InvalidValueError if the binding is not valid for this exchange type."""

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """Add a binding that is not in the index."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """Remove a binding that is in the index."""

    @abstractmethod
    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        """Return the bindings that match, each once. The caller must not modify the collection."""

    @abstractmethod
    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        """Return whether one binding matches, with the reason."""

    @abstractmethod
    def covering(self, binding: Binding) -> Collection[Binding]:
        """Return bindings, including this one, that match every message that this one matches.

        The result may be incomplete, but it is never wrong.
        """
