"""What runs on the executors: batches of messages in, batches of deliveries out, routed by the same Router as the broker's.

The router sees each distinct signature of a batch once. Repeating each message for its queues is then arithmetic on whole
columns. A message that no broker would accept is part of the output too, with the reason.

An executor imports this module, `key_classes` and `signature`, and for the Parquet job `routing_task`. None of them imports
the AMQP source, the client or the embedded queue.
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
from holtmq.errors import HoltmqError
from holtmq.routing import Route, Router
from holtmq.routing.route import Entry
from holtmq.routing.router import routing_keys
from holtmq.spark.key_classes import Integers, KeyClasses
from holtmq.spark.signature import RoutingInputs, SignatureValue, read_headers
from holtmq.table import SHORT_STRING_BYTES, FieldValue
from holtmq.topology import Binding, Registry, Topology

Unroutable: TypeAlias = Literal["keep", "drop", "only"]
UNROUTABLE: tuple[Unroutable, ...] = ("keep", "drop", "only")
CLASSES_FROM = 1_000
"""Number of distinct keys in a batch from which grouping equivalent keys pays off."""
SIGNATURES_KEPT = 200_000
"""Maximum number of cached signatures. The cache is cleared when it exceeds this, which bounds its memory."""
ROUTERS_KEPT = 4
"""Number of routers that a worker process keeps between tasks. Building one costs about 10 µs per binding."""
NULL_KEY = "the routing key is null"
NULL_EXCHANGE = "the exchange is null"


class PackedTopology(NamedTuple):
    """A topology as it is sent to the executors: compressed, with a digest that identifies it without unpacking."""

    packed: bytes
    digest: bytes
    vhost: str

    @classmethod
    def of(cls, topology: Topology, vhost: str) -> PackedTopology:
        """Pack a topology. Runs on the driver, which resolves the policies: executors cannot match regular expressions."""
        if topology.policies:
            topology = Registry.of(topology, vhost).resolve_policies(topology)
        with nothing_collected():
            packed = zlib.compress(pickle.dumps(topology), 1)
        return cls(packed, blake2b(packed, digest_size=16).digest(), vhost)

    def router(self) -> Router:
        """Return the router of this topology, which each worker process builds once. Runs on the executors."""
        return _unpack(_ByDigest(self))


class _ByDigest:
    """A cache key that hashes the digest only, not megabytes of packed topology."""

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
class RoutingSpec:
    """What an executor does with each batch: the topology, the columns of the signature, and the columns to add.

    Created on the driver, pickled with the tasks, used on the executors.
    """

    topology: PackedTopology
    routing_key: str
    exchange_column: str | None
    exchange: str | None
    headers: str | None
    """Name of the column that contains the headers as JSON text."""
    inputs: RoutingInputs
    """If no binding reads headers, they still matter when they add routing keys or cannot be parsed."""
    carried: tuple[str, ...]
    """Input columns that are copied to the output, in output order."""
    unroutable: Unroutable = "keep"
    settings: bool = False
    bindings: bool = False

    def route_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the deliveries of a partition. Spark calls this on the executors, once per task."""
        routes = RouteCache.shared(self)
        for batch in batches:
            yield from self.route(routes, batch)

    def route(self, routes: RouteCache, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the deliveries of a batch of messages: the carried columns, then the added ones.

        No output batch has more rows than the input batch, however many queues each message reaches.
        """
        if not batch.num_rows:
            return
        signatures, of_row = self._signatures(routes, batch)
        rows, at = routes.spread(signatures, of_row)
        carried = batch.select(list(self.carried))
        names = [*self.carried, *self.added]
        for start in range(0, max(1, len(at)), batch.num_rows):
            piece = slice(start, start + batch.num_rows)
            taken = carried if rows is None else carried.take(pa.array(rows[piece]))
            columns = [*taken.columns, *(column.take(pa.array(at[piece])) for column in routes.columns())]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def renamed(self, names: Mapping[str, str]) -> RoutingSpec:
        """Return the same specification for messages whose columns have other names."""
        return replace(
            self,
            routing_key=names[self.routing_key],
            exchange_column=names[self.exchange_column] if self.exchange_column is not None else None,
            headers=names[self.headers] if self.headers is not None else None,
            carried=tuple(names[name] for name in self.carried),
        )

    @property
    def added(self) -> list[str]:
        """Names of the columns that routing adds, in output order."""
        names = ["queue", "reason"]
        names += ["binding_priority", "binding_ttl_ms"] if self.settings else []
        return names + (["bindings"] if self.bindings else [])

    def _signatures(self, routes: RouteCache, batch: pa.RecordBatch) -> tuple[list[SignatureValue], Integers]:
        """Return the distinct signatures of a batch, and for each row the index of its signature."""
        exchanges: list[str | None] = [self.exchange]
        headers: list[str | None] = [None]
        exchange_of_row = np.zeros(batch.num_rows, dtype=np.int64)
        if self.exchange_column is not None:
            exchanges, exchange_of_row = _distinct(batch.column(self.exchange_column))
        key_column = batch.column(self.routing_key)
        if not self.inputs.keyless_exchanges.isdisjoint(exchanges):
            is_keyless = np.array([exchange in self.inputs.keyless_exchanges for exchange in exchanges])[exchange_of_row]
            key_column = _without_keys(key_column, is_keyless)
        keys, of_row = routes.distinct_keys(key_column)
        if self.exchange_column is None and self.headers is None:
            return [(self.exchange, key, None) for key in keys], of_row
        of_row = of_row * len(exchanges) + exchange_of_row
        if self.headers is not None:
            headers, headers_of_row = _distinct(batch.column(self.headers))
            if not self.inputs.header_names:
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
    """Return the distinct values of a column as a list, and for each row the index of its value. Null counts as a value."""
    values, of_row = _encode(column)
    return values.to_pylist(), of_row


def _without_keys(keys: pa.Array, is_keyless: Integers) -> pa.Array:
    """Replace the key by "" where the exchange ignores it. Invalid keys (null or too long) stay, to be reported."""
    texts = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    is_valid = pc.less_equal(pc.binary_length(texts), SHORT_STRING_BYTES).fill_null(False)
    return pc.if_else(pc.and_(pa.array(is_keyless), is_valid), pa.scalar("", texts.type), texts)


def _without_plain(headers: list[str | None], of_row: Integers) -> tuple[list[str | None], Integers]:
    """Replace headers that cannot affect the route by null."""
    numbers: dict[str | None, int] = {}
    for_text = [numbers.setdefault(None if text is None or _is_plain(text) else text, len(numbers)) for text in headers]
    return list(numbers), np.array(for_text, dtype=np.int64)[of_row]


def _is_plain(text: str) -> bool:
    """Return whether headers can be parsed and add no routing keys."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "CC" not in fields and "BCC" not in fields


def _encode(column: pa.Array) -> tuple[pa.Array, Integers]:
    """Return the distinct values, with null last if present, and for each row the index of its value."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values, indices = encoded.dictionary, encoded.indices
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, indices.to_numpy(zero_copy_only=False).astype(np.int64)


class RouteCache:
    """The rows that each known signature expands to: its deliveries, or one row for an unroutable or malformed message.

    A cache outlives a batch. It depends on the topology and the requested columns, not on the names of the input columns.
    """

    def __init__(self, spec: RoutingSpec, router: Router) -> None:
        self._spec = spec
        self._router = router
        self._classes: KeyClasses | None = None
        self._columns: list[pa.Array] | None = None
        self._forget()

    @classmethod
    def shared(cls, spec: RoutingSpec) -> RouteCache:
        """Return the cache that all tasks of this worker process share for such a specification."""
        key = (spec.topology.digest, spec.topology.vhost, spec.unroutable, spec.settings, spec.bindings)
        if key not in _shared:
            if len(_shared) >= ROUTERS_KEPT:
                _shared.clear()
            _shared[key] = cls(spec, spec.topology.router())
        return _shared[key]

    def distinct_keys(self, column: pa.Array) -> tuple[list[str | None], Integers]:
        """Return keys that represent all keys of a column, and for each row the index of its representative."""
        keys, of_row = _encode(column)
        has_null = bool(keys.null_count)
        if len(keys) < CLASSES_FROM or len(keys) * 4 < len(column) or (has_null and keys[-1].is_valid):
            return keys.to_pylist(), of_row
        self._classes = self._classes or KeyClasses(self._router)
        representatives, of_key = self._classes.find(keys[:-1] if has_null else keys)
        values = representatives.to_pylist()
        if has_null:
            values, of_key = [*values, None], np.append(of_key, len(values))
        return values, of_key[of_row]

    def spread(self, signatures: list[SignatureValue], of_row: Integers) -> tuple[Integers | None, Integers]:
        """Return for each delivery the input row that it repeats (None if each row appears once), and its row in `columns`."""
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
        """Return the added columns for all cached signatures."""
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
        if self._spec.settings:
            yield pa.array([entry.priority for entry in self._entries], pa.int32())
            yield pa.array([entry.ttl_ms for entry in self._entries], pa.int64())
        if self._spec.bindings:
            yield pa.array(self._bindings, pa.list_(pa.string()))

    def _add(self, signature: SignatureValue) -> tuple[int, int]:
        """Route a signature and append its rows. Return the index of the first one, and their number."""
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
        if self._spec.unroutable == "only":
            return None
        self._queues += route.queues
        self._reasons += [None] * len(route.queues)
        if self._spec.settings:
            self._entries += [route.entries.get(queue, Entry()) for queue in route.queues]
        if self._spec.bindings:
            self._bindings += self._bindings_into(route, exchange, key, headers)
        return None

    def _add_nothing(self, reason: str | None) -> None:
        if reason is None and self._spec.unroutable == "drop":
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


_shared: dict[tuple[object, ...], RouteCache] = {}


def matched_bindings(router: Router, exchange: str, key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
    """Return all bindings that a message matches on its way through the exchanges into its queues."""
    hops = router.walk(exchange, routing_keys(key, headers), headers)
    return [binding for hop in hops for binding in hop.matched]
