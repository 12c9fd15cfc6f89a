"""The routes that a process knows: each signature is routed once, and equal sets of queues are stored once.

The routes are columns, so that finding those of a batch of messages is arithmetic on whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from holtmq.routing import Router
from holtmq.spark.key_classes import Integers, KeyClasses
from holtmq.spark.packed_topology import ROUTERS_KEPT
from holtmq.spark.route_outcome import NO_ENTRY, NO_ROWS, RouteOutcome
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature_batch import SignatureBatch, encode, is_utf8
from holtmq.spark.signature_value import SignatureValue, Text, texts

CLASSES_FROM = 1_000
"""Number of distinct keys in a batch from which grouping equivalent keys pays off."""
SAMPLED_KEYS = 4_096
SIGNATURES_KEPT = 200_000
ROWS_KEPT = 2_000_000
"""Maximum number of cached signatures, and of rows in their outcomes. A cache that exceeds one of them is cleared."""
LISTED_ROWS = 100_000
"""Approximate maximum number of rows in one array of lists."""


class RouteCache:
    """The rows that each known signature expands to: its deliveries, or one row for an unroutable or malformed message.

    A cache outlives a batch. Each distinct outcome has a number; `columns` contains the rows of all outcomes.
    """

    def __init__(self, spec: RoutingSpec, router: Router) -> None:
        self._spec = spec
        self._router = router
        self._classes: KeyClasses | None = None
        self._known: dict[SignatureValue, int] = {}
        self._numbers: dict[RouteOutcome, int] = {}
        self._new: list[RouteOutcome] = []
        self._offsets: Integers = np.zeros(1, dtype=np.int64)
        self._columns = self._make_columns([])

    @classmethod
    def shared(cls, spec: RoutingSpec) -> RouteCache:
        """Return the cache that all tasks of this worker process share for such a specification."""
        key = (spec.topology.digest, spec.topology.vhost, spec.inputs, spec.exchange, spec.unroutable, spec.added)
        if key not in _shared:
            if len(_shared) >= ROUTERS_KEPT:
                _shared.clear()
            _shared[key] = cls(spec, spec.topology.router())
        return _shared[key]

    def outcomes(self, batch: SignatureBatch) -> Integers:
        """Return for each message the number of its outcome."""
        if len(self._known) > SIGNATURES_KEPT or self._offsets[-1] > ROWS_KEPT:
            self._forget()
        signatures, of_row = batch.distinct(self._spec.exchange, self._spec.inputs, self._distinct_keys)
        known = self._known
        numbers = [known[signature] if signature in known else self._add(signature) for signature in signatures]
        if self._new:
            self._append_new()
        return np.array(numbers, dtype=np.int64)[of_row]

    def spread(self, outcomes: Integers) -> tuple[Integers | None, Integers]:
        """Return for each delivery the message that it repeats (None if each appears once), and its row in `columns`."""
        starts, counts = self._offsets[outcomes], np.diff(self._offsets)[outcomes]
        if counts.min() == counts.max() == 1:
            return None, starts
        rows = np.repeat(np.arange(len(outcomes)), counts)
        first = np.cumsum(counts) - counts
        return rows, np.arange(len(rows)) + np.repeat(starts - first, counts)

    def lists(self, outcomes: Integers) -> Iterator[pa.ListArray]:
        """Yield the rows of each message as a list of structs, in arrays of bounded size, however many queues there are."""
        every = self.list_all()
        sizes = np.cumsum(np.diff(self._offsets)[outcomes])
        start = 0
        while start < len(outcomes):
            before = sizes[start - 1] if start else 0
            end = max(start + 1, int(np.searchsorted(sizes, before + LISTED_ROWS, side="right")))
            yield every.take(pa.array(outcomes[start:end]))
            start = end

    def list_all(self) -> pa.ListArray:
        """Return the rows of each outcome as a list of structs, by number."""
        rows = pa.StructArray.from_arrays(self._columns, names=self._spec.added.names)
        return pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), rows)

    def single_rows(self, outcomes: Integers) -> list[pa.Array]:
        """Return the columns of messages that have one row at most. Those that have none are null."""
        starts, counts = self._offsets[outcomes], np.diff(self._offsets)[outcomes]
        rows = pa.array(starts, pa.int64(), mask=counts == 0)
        return [column.take(rows) for column in self._columns]

    @property
    def size(self) -> int:
        """The number of rows of all outcomes."""
        return int(self._offsets[-1])

    @property
    def longest(self) -> int:
        """The largest number of rows of an outcome."""
        return int(np.diff(self._offsets).max(initial=0))

    def columns(self) -> list[pa.Array]:
        """Return the added columns for all known outcomes."""
        return self._columns

    def _forget(self) -> None:
        self._known.clear()
        self._numbers.clear()
        self._offsets = self._offsets[:1]
        self._columns = self._make_columns([])

    def _distinct_keys(self, column: pa.Array) -> tuple[list[Text], Integers]:
        """Return keys that represent all keys of a column, and for each row the index of its representative."""
        if _are_mostly_distinct(column) and is_utf8(column):
            return self._representatives(column)
        keys, of_row = encode(column)
        has_null = bool(keys.null_count)
        is_worthwhile = len(keys) >= CLASSES_FROM and len(keys) * 4 >= len(column)
        if not is_worthwhile or (has_null and keys[-1].is_valid) or not is_utf8(keys):
            return texts(keys), of_row
        values, of_key = self._representatives(keys[:-1] if has_null else keys)
        if has_null:
            values, of_key = [*values, None], np.append(of_key, len(values))
        return values, of_key[of_row]

    def _representatives(self, keys: pa.Array) -> tuple[list[Text], Integers]:
        self._classes = self._classes or KeyClasses(self._router)
        representatives, of_key = self._classes.find(keys)
        return representatives.to_pylist(), of_key

    def _add(self, signature: SignatureValue) -> int:
        """Route a signature. Return the number of its outcome."""
        outcome = RouteOutcome.of(self._router, signature, self._spec.added)
        if not self._is_wanted(outcome):
            outcome = NO_ROWS
        if outcome not in self._numbers:
            self._numbers[outcome] = len(self._numbers)
            self._new.append(outcome)
        number = self._known[signature] = self._numbers[outcome]
        return number

    def _is_wanted(self, outcome: RouteOutcome) -> bool:
        if outcome.reason is not None or self._spec.unroutable == "keep":
            return True
        return (outcome.queues[0] is None) == (self._spec.unroutable == "only")

    def _append_new(self) -> None:
        """Append the rows of new outcomes to the columns."""
        both = zip(self._columns, self._make_columns(self._new), strict=True)
        self._columns = [pa.concat_arrays(old_and_new) for old_and_new in both]
        counts = np.cumsum([len(outcome.queues) for outcome in self._new])
        self._offsets = np.append(self._offsets, self._offsets[-1] + counts)
        self._new.clear()

    def _make_columns(self, outcomes: list[RouteOutcome]) -> list[pa.Array]:
        queues = [queue for outcome in outcomes for queue in outcome.queues]
        reasons = [outcome.reason for outcome in outcomes for _ in outcome.queues]
        columns = [pa.array(queues, pa.string()), pa.array(reasons, pa.string())]
        if self._spec.added.settings:
            entries = [entry for outcome in outcomes for entry in outcome.entries or (NO_ENTRY,) * len(outcome.queues)]
            columns.append(pa.array([entry.priority for entry in entries], pa.int32()))
            columns.append(pa.array([entry.ttl_ms for entry in entries], pa.int64()))
        if self._spec.added.bindings:
            bindings = [names for outcome in outcomes for names in outcome.bindings or ((),) * len(outcome.queues)]
            columns.append(pa.array(bindings, pa.list_(pa.string())))
        return columns


def _are_mostly_distinct(keys: pa.Array) -> bool:
    """Return whether the first keys of a batch show that looking for equal ones costs more than it saves."""
    if len(keys) <= SAMPLED_KEYS or keys.null_count or pa.types.is_dictionary(keys.type):
        return False
    return len(keys[:SAMPLED_KEYS].unique()) > 0.9 * SAMPLED_KEYS


_shared: dict[tuple[object, ...], RouteCache] = {}
