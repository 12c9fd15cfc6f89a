"""Batches of signatures in, deliveries out: the one Router at work on Arrow data. Runs on the executors.

Each distinct signature of a batch is routed once; how often each of its rows then appears, and with which queue, is
arithmetic on whole columns. A row that can't be routed by anyone comes out as well, with the reason.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holtmq.allocator import nothing_collected
from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.routing import Route, Router
from holtmq.routing.route import Entry
from holtmq.routing.router import routing_keys
from holtmq.spark.key_classes import Integers, KeyClasses
from holtmq.spark.messages import Matters
from holtmq.table import SHORT_STRING_BYTES, FieldValue, describe
from holtmq.table_json import from_json
from holtmq.topology import Binding, Topology

Unroutable: TypeAlias = Literal["keep", "drop", "only"]
UNROUTABLE: tuple[Unroutable, ...] = ("keep", "drop", "only")
SignatureValue: TypeAlias = tuple[str | None, str | None, str | None]
"""Exchange, routing key, and the headers as JSON text."""
CLASSES_FROM = 1_000
"""With fewer distinct keys in a batch it is not worth while to look for those that are alike."""
SIGNATURES_KEPT = 200_000
"""Memory is bounded whatever keys come: when there are more, all are forgotten."""
ROUTERS_KEPT = 4
"""Routers that a worker process keeps from one task to the next: building one costs some 10 µs a binding."""
NULL_KEY = "the routing key is null"
NULL_EXCHANGE = "the exchange is null"


class PackedTopology(NamedTuple):
    """A topology on its way to the executors: small, and told apart from others without being unpacked."""

    packed: bytes
    digest: bytes
    vhost: str

    @classmethod
    def of(cls, topology: Topology, vhost: str) -> PackedTopology:
        with nothing_collected():
            packed = zlib.compress(pickle.dumps(topology), 1)
        return cls(packed, blake2b(packed, digest_size=16).digest(), vhost)

    def router(self) -> Router:
        return _unpack(_ByDigest(self))


class _ByDigest:
    """Hashes by digest alone, so that the cache of routers need not look at megabytes."""

    def __init__(self, topology: PackedTopology) -> None:
        self.topology = topology
        self._key = (topology.digest, topology.vhost)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByDigest) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=ROUTERS_KEPT)
def _unpack(wanted: _ByDigest) -> Router:
    with nothing_collected():
        return Router(pickle.loads(zlib.decompress(wanted.topology.packed)), wanted.topology.vhost)


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for: which topology, where in a batch the signature is, and which columns to add."""

    topology: PackedTopology
    routing_key: str
    exchange_column: str | None
    exchange: str | None
    headers: str | None
    """The column with the headers as JSON text."""
    matters: Matters
    """If no headers do, all that counts of them is whether they add keys, or can't be read."""
    carried: tuple[str, ...]
    """The columns that come out again, in this order."""
    unroutable: Unroutable = "keep"
    settings: bool = False
    bindings: bool = False

    def route_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The deliveries of a partition: what Spark calls on the executors."""
        outcomes = Outcomes.kept_for(self)
        for batch in batches:
            yield from self.route(outcomes, batch)

    def route(self, outcomes: Outcomes, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The deliveries of a batch of messages: the columns that are carried, then those that say where to.

        However many queues each reaches, no batch that comes out has more rows than the one that went in.
        """
        if not batch.num_rows:
            return
        signatures, of_row = self._signatures(outcomes, batch)
        rows, at = outcomes.spread(signatures, of_row)
        carried = batch.select(list(self.carried))
        names = [*self.carried, *self.added]
        for start in range(0, max(1, len(at)), batch.num_rows):
            piece = slice(start, start + batch.num_rows)
            taken = carried if rows is None else carried.take(pa.array(rows[piece]))
            columns = [*taken.columns, *(column.take(pa.array(at[piece])) for column in outcomes.columns())]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def renamed(self, names: Mapping[str, str]) -> Order:
        """The same for messages whose columns have other names."""
        return replace(
            self,
            routing_key=names[self.routing_key],
            exchange_column=names[self.exchange_column] if self.exchange_column is not None else None,
            headers=names[self.headers] if self.headers is not None else None,
            carried=tuple(names[name] for name in self.carried),
        )

    @property
    def added(self) -> list[str]:
        names = ["queue", "reason"]
        names += ["binding_priority", "binding_ttl_ms"] if self.settings else []
        return names + (["bindings"] if self.bindings else [])

    def _signatures(self, outcomes: Outcomes, batch: pa.RecordBatch) -> tuple[list[SignatureValue], Integers]:
        """The distinct signatures of a batch, and for each row the number of its own."""
        exchanges: list[str | None] = [self.exchange]
        headers: list[str | None] = [None]
        exchange_of_row = np.zeros(batch.num_rows, dtype=np.int64)
        if self.exchange_column is not None:
            exchanges, exchange_of_row = _distinct(batch.column(self.exchange_column))
        key_column = batch.column(self.routing_key)
        if not self.matters.keyless.isdisjoint(exchanges):
            is_keyless = np.array([exchange in self.matters.keyless for exchange in exchanges])[exchange_of_row]
            key_column = _without_keys(key_column, is_keyless)
        keys, of_row = outcomes.distinct_keys(key_column)
        if self.exchange_column is None and self.headers is None:
            return [(self.exchange, key, None) for key in keys], of_row
        of_row = of_row * len(exchanges) + exchange_of_row
        if self.headers is not None:
            headers, headers_of_row = _distinct(batch.column(self.headers))
            if not self.matters.headers:
                headers, headers_of_row = _without_plain(headers, headers_of_row)
            of_row = of_row * len(headers) + headers_of_row
        if len(exchanges) == len(headers) == 1:
            return [(exchanges[0], key, headers[0]) for key in keys], of_row
        numbers, of_row = np.unique(of_row, return_inverse=True)
        signatures = []
        for number in numbers.tolist():
            before, header = divmod(number, len(headers))
            key, exchange = divmod(before, len(exchanges))
            signatures.append((exchanges[exchange], keys[key], headers[header]))
        return signatures, of_row


def _distinct(column: pa.Array) -> tuple[list[Any], Integers]:
    """The distinct values of a column, and for each row the number of its value; null is a value too."""
    values, of_row = _encode(column)
    return values.to_pylist(), of_row


def _without_keys(keys: pa.Array, is_keyless: Integers) -> pa.Array:
    """The same with an empty key for messages to which theirs makes no difference; those that are no keys stay."""
    texts = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    is_fine = pc.less_equal(pc.binary_length(texts), SHORT_STRING_BYTES).fill_null(False)
    return pc.if_else(pc.and_(pa.array(is_keyless), is_fine), pa.scalar("", texts.type), texts)


def _without_plain(headers: list[str | None], of_row: Integers) -> tuple[list[str | None], Integers]:
    """The same with null for headers that make no difference."""
    numbers: dict[str | None, int] = {}
    for_text = [numbers.setdefault(None if text is None or _is_plain(text) else text, len(numbers)) for text in headers]
    return list(numbers), np.array(for_text, dtype=np.int64)[of_row]


def _is_plain(text: str) -> bool:
    """Whether headers can be read and add no keys."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "CC" not in fields and "BCC" not in fields


def _encode(column: pa.Array) -> tuple[pa.Array, Integers]:
    """The distinct values, null last if there is one, and for each row the number of its value."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values, indices = encoded.dictionary, encoded.indices
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, indices.to_numpy(zero_copy_only=False).astype(np.int64)


class Outcomes:
    """What becomes of each signature: its deliveries, or one row that says there is none. Kept from batch to batch.

    Of an order it depends on the topology and on what is asked for, not on where the columns are.
    """

    def __init__(self, order: Order, router: Router) -> None:
        self._order = order
        self._router = router
        self._classes: KeyClasses | None = None
        self._columns: list[pa.Array] | None = None
        self._forget()

    @classmethod
    def kept_for(cls, order: Order) -> Outcomes:
        """Those of this worker process for such an order: what one task found out, the next one knows."""
        asked = (order.topology.digest, order.topology.vhost, order.unroutable, order.settings, order.bindings)
        if asked not in _kept:
            if len(_kept) >= ROUTERS_KEPT:
                _kept.clear()
            _kept[asked] = cls(order, order.topology.router())
        return _kept[asked]

    def distinct_keys(self, column: pa.Array) -> tuple[list[str | None], Integers]:
        """Keys that stand for all keys of a column, and for each row the number of its own."""
        keys, of_row = _encode(column)
        has_null = bool(keys.null_count)
        if len(keys) < CLASSES_FROM or len(keys) * 4 < len(column) or (has_null and keys[-1].is_valid):
            return keys.to_pylist(), of_row
        self._classes = self._classes or KeyClasses(self._router)
        stand_ins, of_key = self._classes.find(keys[:-1] if has_null else keys)
        values = stand_ins.to_pylist()
        if has_null:
            values, of_key = [*values, None], np.append(of_key, len(values))
        return values, of_key[of_row]

    def spread(self, signatures: list[SignatureValue], of_row: Integers) -> tuple[Integers | None, Integers]:
        """For each delivery the row that it repeats, None where all appear once; and the row of ours that says where to."""
        if len(self._known) > SIGNATURES_KEPT:
            self._forget()
        known = self._known
        spans = np.array([known.get(signature) or self._add(signature) for signature in signatures], dtype=np.int64)
        starts, counts = spans[:, 0][of_row], spans[:, 1]
        if counts.min() == counts.max() == 1:
            return None, starts
        counts = counts[of_row]
        rows = np.repeat(np.arange(len(of_row)), counts)
        first = np.cumsum(counts) - counts
        return rows, np.arange(len(rows)) + np.repeat(starts - first, counts)

    def columns(self) -> list[pa.Array]:
        if self._columns is None:
            self._columns = list(self._make_columns())
        return self._columns

    def _forget(self) -> None:
        self._known: dict[SignatureValue, tuple[int, int]] = {}
        self._queues: list[str | None] = []
        self._reasons: list[str | None] = []
        self._entries: list[Entry] = []
        self._bindings: list[list[str]] = []
        self._columns = None

    def _make_columns(self) -> Iterator[pa.Array]:
        yield pa.array(self._queues, pa.string())
        yield pa.array(self._reasons, pa.string())
        if self._order.settings:
            yield pa.array([entry.priority for entry in self._entries], pa.int32())
            yield pa.array([entry.ttl_ms for entry in self._entries], pa.int64())
        if self._order.bindings:
            yield pa.array(self._bindings, pa.list_(pa.string()))

    def _add(self, signature: SignatureValue) -> tuple[int, int]:
        """Note what becomes of a signature; where that starts, and the number of rows that each of its messages becomes."""
        start = len(self._queues)
        self._add_deliveries(*signature)
        span = self._known[signature] = (start, len(self._queues) - start)
        self._columns = None
        return span

    def _add_deliveries(self, exchange: str | None, key: str | None, headers_text: str | None) -> None:
        try:
            headers = read_headers(headers_text) if headers_text is not None else {}
            if key is None or exchange is None:
                return self._add_nothing(NULL_KEY if key is None else NULL_EXCHANGE)
            route = self._router.resolve(exchange, key, headers)
        except HoltmqError as error:
            return self._add_nothing(str(error))
        if not route.queues:
            return self._add_nothing(None)
        if self._order.unroutable == "only":
            return None
        self._queues += route.queues
        self._reasons += [None] * len(route.queues)
        if self._order.settings:
            self._entries += [route.entries.get(queue, Entry()) for queue in route.queues]
        if self._order.bindings:
            self._bindings += self._bindings_into(route, exchange, key, headers)
        return None

    def _add_nothing(self, reason: str | None) -> None:
        if reason is None and self._order.unroutable == "drop":
            return
        self._queues.append(None)
        self._reasons.append(reason)
        self._entries.append(Entry())
        self._bindings.append([])

    def _bindings_into(self, route: Route, exchange: str, key: str, headers: Mapping[str, FieldValue]) -> list[list[str]]:
        by_queue: dict[str, list[str]] = {queue: [] for queue in route.queues}
        for binding in matched_bindings(self._router, exchange, key, headers):
            if binding.is_to_queue:
                by_queue[binding.destination].append(str(binding))
        return [sorted(names) for names in by_queue.values()]


_kept: dict[tuple[object, ...], Outcomes] = {}


def matched_bindings(router: Router, exchange: str, key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
    """Every binding that a message passes, from exchange to exchange and into its queues."""
    hops = router.walk(exchange, routing_keys(key, headers), headers)
    return [binding for hop in hops for binding in hop.matched]


def read_headers(text: str) -> dict[str, FieldValue]:
    """The headers that a JSON text stands for, in the notation of `table_json`."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"headers: expected a JSON object, got {_shortened(text)} ({error})") from error
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise InvalidValueError(f"headers: expected a JSON object, got {describe(fields)}")
    if "{" in text[1:]:  # only then can there be a value in the notation of a type that JSON lacks
        try:
            return {name: from_json(value, f"headers.{name}") for name, value in fields.items()}
        except RecursionError as error:
            raise InvalidValueError(f"headers: nested too deep, {_shortened(text)}") from error
    return fields


def _shortened(text: str, length: int = 60) -> str:
    return repr(text if len(text) <= length else text[:length] + "…")
