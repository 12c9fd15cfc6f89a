"""The interface of an exchange type: which bindings of an exchange match a message, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange

NO_HEADERS: Mapping[str, FieldValue] = {}


class _EveryValue(Collection[Hashable]):
    """The values of a header that affects matching as a whole."""

    def __contains__(self, value: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Hashable]:
        return iter(())

    def __len__(self) -> int:
        return 0


EVERY_VALUE = _EveryValue()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a binding matches a message, the reason, and for a mismatch how close it is (0 to 1)."""

    is_match: bool
    reason: str
    closeness: float = 1.0


class Matcher(ABC):
    """The bindings of one exchange, indexed for its type. Each exchange type is a subclass in a module of its own."""

    type: ClassVar[str]
    reads_routing_key: bool = True
    chooses_one: ClassVar[bool] = False
    """Whether a message has one destination that depends on all bindings, and on its own routing key, not on CC and BCC."""

    @property
    def is_costly(self) -> bool:
        """Whether finding a new route may take a millisecond."""
        return False

    @classmethod
    def of(cls, exchange: Exchange) -> Self:  # noqa: ARG003  # most types have no arguments
        """Return the matcher of an exchange without bindings; raise InvalidValueError if its arguments are not valid."""
        return cls()

    @property
    def header_values(self) -> Mapping[str, Collection[Hashable]]:
        """The headers that affect matching, each with the comparable values that bindings test for, or with EVERY_VALUE."""
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
