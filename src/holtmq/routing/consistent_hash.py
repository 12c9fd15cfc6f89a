"""The x-consistent-hash exchange type: each message reaches one destination, chosen by a hash of its routing key or a header.

The hash of a message is one of 65,536 slots, and each slot belongs to one destination: weighted rendezvous hashing. The owner
of a slot follows from the names and weights of the destinations alone, so it is the same in every process, in every version,
and whatever the order in which bindings were declared. If a binding is added, only slots of its destination change hands; if
one is removed, only slots that its destination had. The rule is specified, with test vectors, in docs/routing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from hashlib import blake2b
from math import log1p
from typing import Any, TypeAlias
from zlib import crc32

from holtmq.errors import InvalidValueError
from holtmq.routing.matcher import EVERY_VALUE, Matcher, Verdict
from holtmq.table import FieldValue, describe
from holtmq.topology import Binding, Exchange
from holtmq.topology.criteria import comparable
from holtmq.topology.weight import CONSISTENT_HASH, weight_of

SLOTS = 65_536
CHANGES_KEPT = 100
MANY_BUCKETS = 100
"""Number of destinations from which looking up a new slot takes long. Each takes a tenth of a microsecond, or one."""
HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
_DRAWS = 2**64
"""The number of values of a draw."""
_LAST_DRAW = _DRAWS - 1
_CLOSE = 1 + 1e-9
"""Scores that differ by less are compared exactly. The error of a floating-point score is a millionth of that."""
_EXACT = Context(prec=100)

Draw: TypeAlias = tuple[int, "_Bucket"]


class _Bucket:
    """A destination, with its bindings and the sum of their weights."""

    __slots__ = ("bindings", "name", "seed", "weight")

    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name
        self.seed = _seed_of(":".join(name))
        self.weight = 0
        self.bindings: set[Binding] = set()


class ConsistentHashMatcher(Matcher):
    """The bindings of an x-consistent-hash exchange, by destination, and the owners of the slots that were looked up."""

    type = CONSISTENT_HASH
    chooses_one = True

    def __init__(self, header: str | None = None) -> None:
        self.reads_routing_key = header is None
        self._header = header
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._by_weight: dict[int, tuple[list[int], list[_Bucket]]] = {}
        """The seeds of the buckets and the buckets, in the order of their names, by weight; empty after a change."""
        self._owners: dict[int, tuple[_Bucket, int]] = {}
        """The owner of each slot that was looked up, and the number of changes that had been made by then."""
        self._changes: list[_Bucket] = []
        """The buckets whose weight has changed since owners were looked up."""
        self._total = 0

    @classmethod
    def of(cls, exchange: Exchange) -> ConsistentHashMatcher:
        if HASH_PROPERTY in exchange.arguments:
            raise InvalidValueError(
                f"exchange {exchange.name!r}: argument {HASH_PROPERTY!r} is not supported; "
                f"use the routing key, or name a header in {HASH_HEADER!r}"
            )
        header = exchange.arguments.get(HASH_HEADER)
        if header is not None and not isinstance(header, str):
            raise InvalidValueError(
                f"exchange {exchange.name!r}: argument {HASH_HEADER!r} must be the name of a header, got {describe(header)}"
            )
        return cls(header)

    @property
    def is_costly(self) -> bool:
        return len(self._buckets) > MANY_BUCKETS

    @property
    def header_values(self) -> Mapping[str, Collection[Hashable]]:
        return {} if self._header is None else {self._header: EVERY_VALUE}

    def validate(self, binding: Binding) -> None:
        weight_of(binding.routing_key)

    def add(self, binding: Binding) -> None:
        name = (binding.destination_type, binding.destination)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(name)
        bucket.bindings.add(binding)
        self._change_weight(bucket, weight_of(binding.routing_key))

    def remove(self, binding: Binding) -> None:
        name = (binding.destination_type, binding.destination)
        bucket = self._buckets[name]
        bucket.bindings.remove(binding)
        if not bucket.bindings:
            del self._buckets[name]
        self._change_weight(bucket, -weight_of(binding.routing_key))

    def _change_weight(self, bucket: _Bucket, change: int) -> None:
        bucket.weight += change
        self._total += change
        self._by_weight = {}
        if self._owners:
            self._changes.append(bucket)
        if len(self._changes) > max(CHANGES_KEPT, len(self._buckets)):  # to follow them would cost more than to forget
            self._owners, self._changes = {}, []

    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        if not self._buckets:
            return ()
        return self._owner(slot_of(self._hashed(routing_key, headers))).bindings

    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        if not self._buckets:
            return Verdict(False, "the exchange has no bindings", 0.0)
        number = crc32(self._hashed(routing_key, headers))
        owner = self._owner(number % SLOTS)
        what = "the routing key" if self._header is None else f"header {self._header!r}"
        reason = (
            f"{what} has the hash {number:08x}, slot {number % SLOTS}, which belongs to {owner.name[0]} {owner.name[1]!r} "
            f"(weight {owner.weight} of {self._total})"
        )
        return Verdict(True, reason) if binding in owner.bindings else Verdict(False, reason, 0.0)

    def covering(self, binding: Binding) -> Collection[Binding]:
        return (binding,)  # another binding to the same destination matches the same messages, but its weight counts

    def _hashed(self, routing_key: str, headers: Mapping[str, FieldValue]) -> bytes:
        if self._header is None:
            return _bytes_of(routing_key)
        try:
            return _bytes_of(_text_of(comparable(headers.get(self._header))))
        except RecursionError as error:
            raise InvalidValueError(f"header {self._header!r} is nested too deeply to be hashed") from error

    def _owner(self, slot: int) -> _Bucket:
        """Return the owner of a slot. One that was known loses the slot only to a bucket that has changed since."""
        owner, seen = self._owners.get(slot, (None, 0))
        if owner is not None and seen == len(self._changes):
            return owner
        changed = dict.fromkeys(self._changes[seen:])
        if owner is None or owner in changed:
            owner = self._choose(slot)
        else:
            factor = _seed_of(str(slot))
            rivals = (owner, *(bucket for bucket in changed if bucket.weight))
            owner = _lowest_score([(_draw(bucket.seed, factor), bucket) for bucket in rivals])
        self._owners[slot] = owner, len(self._changes)
        return owner

    def _choose(self, slot: int) -> _Bucket:
        """Return the owner of a slot. Of equal weights the lowest draw wins, so only one of each weight is compared."""
        if not self._by_weight:
            for _, bucket in sorted(self._buckets.items()):
                seeds, buckets = self._by_weight.setdefault(bucket.weight, ([], []))
                seeds.append(bucket.seed)
                buckets.append(bucket)
        factor, best = _seed_of(str(slot)), list[Draw]()
        for seeds, buckets in self._by_weight.values():
            draws = [seed * factor & _LAST_DRAW for seed in seeds]  # as `_draw`: a call would take as long again
            lowest = min(draws)
            best.append((lowest, buckets[draws.index(lowest)]))
        return best[0][1] if len(best) == 1 else _lowest_score(best)


def _lowest_score(draws: list[Draw]) -> _Bucket:
    """Return the bucket with the lowest -ln(1 - draw) / weight, whatever the floating-point library of the machine."""
    scores = [-log1p(-min(draw / _DRAWS, 1 - 2**-53)) / bucket.weight for draw, bucket in draws]
    limit = min(scores) * _CLOSE
    close = [draw for draw, score in zip(draws, scores, strict=True) if score <= limit]
    return close[0][1] if len(close) == 1 else min(close, key=_exact_score)[1]


def _exact_score(draw: Draw) -> tuple[Decimal, tuple[str, str]]:
    number, bucket = draw
    logarithm = _EXACT.ln(_EXACT.divide(Decimal(_DRAWS - number), Decimal(_DRAWS)))
    return _EXACT.divide(_EXACT.minus(logarithm), Decimal(bucket.weight)), bucket.name


def _draw(seed: int, factor: int) -> int:
    return seed * factor % _DRAWS


def _seed_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def slot_of(data: bytes) -> int:
    """Return the slot of what is hashed."""
    return crc32(data) % SLOTS


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # bytes that are not UTF-8 count as they are
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _text_of(value: Hashable) -> str:
    """Return the text of a comparable header value that is hashed: the same for all values that compare as equal."""
    match value:
        case None:
            return ""
        case str():
            return value
        case int():
            return str(value)
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case (kind, inner):
            return _text_of_kind(kind, inner)
        case _:
            raise AssertionError(f"not a comparable value: {value!r}")


def _text_of_kind(kind: object, value: Any) -> str:
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return repr(value + 0.0)  # -0.0 equals 0.0
    if kind == "decimal":
        without_zeros = Context(len(value.as_tuple().digits), Emin=MIN_EMIN, Emax=MAX_EMAX).normalize(value)
        return str(without_zeros) if value else "0"
    if kind == "array":
        return f"[{','.join(map(_text_of, value))}]"
    if kind == "table":
        fields = sorted((name, _text_of(item)) for name, item in value)
        return f"{{{','.join(f'{name}:{text}' for name, text in fields)}}}"
    return str(value)  # the seconds of a timestamp
