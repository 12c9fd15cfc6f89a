"""The one interface of every exchange type: which bindings of an exchange match a message, and why or why not."""

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
    """Whether a binding matches a message, in words; and, where it does not, how close it came (0 to 1)."""

    is_match: bool
    reason: str
    closeness: float = 1.0


class Matcher(ABC):
    """The bindings of one exchange, indexed for its type. A new exchange type is a subclass in a file of its own."""

    type: ClassVar[str]
    reads_routing_key: ClassVar[bool] = True

    @property
    def header_values(self) -> Mapping[str, Collection[Hashable]]:
        """The headers that decide a match, each with the comparable values that some binding compares it to."""
        return {}

    def validate(self, binding: Binding) -> None:  # noqa: B027  # most types take any binding
        """Raise where the binding makes no sense on this type of exchange."""

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """Index a binding that is not here yet."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """Forget a binding that is here."""

    @abstractmethod
    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        """The bindings that match, each once; the caller must not change the collection."""

    @abstractmethod
    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        """The same decision for one binding by itself, with the reason."""

    @abstractmethod
    def covering(self, binding: Binding) -> Collection[Binding]:
        """Bindings here, itself among them, that match whatever this one matches. Some may be missed, none is wrong."""
