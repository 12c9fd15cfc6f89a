"""The SQL functions that `register` adds to a session: `holtmq_route` returns a table, `holtmq_queues` an array.

The driver reads the topology and sends it to the executors, which route each distinct signature once and keep the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, UserDefinedTableFunction

from holtmq.errors import InvalidValueError
from holtmq.routing import Router
from holtmq.spark.comparison import queues_of
from holtmq.spark.packed_topology import PackedTopology
from holtmq.spark.route_cache import SIGNATURES_KEPT
from holtmq.table import FieldValue
from holtmq.table_json import to_json
from holtmq.topology import DEFAULT_VHOST, Topology

ROUTE, QUEUES = "holtmq_route", "holtmq_queues"
ADDED = ("queue", "reason")
PLAIN = (str, bool, int, float, bytes)
"""The types of header values that mean the same in Spark, Python and AMQP."""
Find = Callable[[str | None, str | None, str | None], tuple[tuple[str, ...], str | None]]
"""The queues of a signature, and the reason if no broker would accept it."""


def register_functions(spark: SparkSession, topology: Topology | None, vhost: str) -> None:
    """Add `holtmq_route` and, for a topology, `holtmq_queues` to the SQL of a session. Runs on the driver."""
    spark.udtf.register(ROUTE, cast("UserDefinedTableFunction", F.udtf(RouteFunction, useArrow=False)))
    if topology is not None:
        spark.udf.register(QUEUES, F.udf(QueuesFunction(topology, vhost), ArrayType(StringType()), useArrow=True))


class QueuesFunction:
    """`holtmq_queues(exchange, routing_key, headers)`. Created on the driver, called on the executors once per message."""

    def __init__(self, topology: Topology, vhost: str) -> None:
        Router(topology, vhost)  # raises an error where the user sees it: on the driver
        self._topology = PackedTopology.of(topology, vhost)
        self._find: Find | None = None

    def __call__(self, exchange: str | None, routing_key: str | None, headers: Any = None) -> list[str] | None:
        """Return the queues that a message reaches, or None if no broker would accept it."""
        if self._find is None:
            self._find = remembering(self._topology)
        queues, reason = self._find(exchange, routing_key, headers_text(headers))
        return list(queues) if reason is None else None


@dataclass
class RouteAnalysis(AnalyzeResult):
    """The result schema of `holtmq_route`, and what the executors need. Spark pickles it."""

    topology: PackedTopology | None = None
    exchange: str | None = None
    places: dict[str, int | None] = field(default_factory=dict)
    """The index of each column of the signature, or None if the messages lack it."""


class RouteFunction:
    """`holtmq_route(TABLE(messages), 'definitions.json', vhost => '/', exchange => 'orders')`.

    Spark calls `analyze` in a Python process on the driver, and creates one instance for each partition on the executors.
    """

    def __init__(self, analysis: RouteAnalysis) -> None:
        assert analysis.topology is not None
        self._find = remembering(analysis.topology)
        self._exchange = analysis.exchange
        self._places = analysis.places

    @staticmethod
    def analyze(
        messages: AnalyzeArgument,
        definitions: AnalyzeArgument,
        vhost: AnalyzeArgument | None = None,
        exchange: AnalyzeArgument | None = None,
    ) -> RouteAnalysis:
        """Read the topology and find the columns. Raise InvalidValueError if the arguments are wrong."""
        if not messages.isTable or not isinstance(messages.dataType, StructType):
            raise InvalidValueError(f"{ROUTE}: the first argument must be a table such as TABLE(messages)")
        name = _constant(vhost, "vhost") or DEFAULT_VHOST
        topology = Topology.from_definitions(_required(definitions, "definitions"))
        router = Router(topology, name)
        fixed = _constant(exchange, "exchange")
        if fixed is not None:
            router.require_publishable(fixed)
        columns = [each.name for each in messages.dataType]
        wanted = ("routing_key", "headers") if fixed is not None else ("exchange", "routing_key", "headers")
        places = {column: _place(columns, column) for column in wanted}
        taken = [column for column in columns if column.lower() in ADDED]
        if taken:
            raise InvalidValueError(f"{ROUTE}: the messages already have a column {taken[0]!r}, which routing adds: rename it")
        schema = StructType([*messages.dataType, *(StructField(column, StringType()) for column in ADDED)])
        return RouteAnalysis(schema, topology=PackedTopology.of(topology, name), exchange=fixed, places=places)

    def eval(self, message: Row, *_: object, **__: object) -> Iterator[tuple[Any, ...]]:
        """Yield the message once for each queue that it reaches, or once with the reason if a broker would refuse it."""
        exchange = self._exchange if self._exchange is not None else self._value(message, "exchange")
        queues, reason = self._find(
            exchange, self._value(message, "routing_key"), headers_text(self._value(message, "headers"))
        )
        for queue in queues or (None,):
            yield (*message, queue, reason)

    def _value(self, message: Row, column: str) -> Any:
        place = self._places[column]
        return None if place is None else message[place]


def _place(columns: list[str], wanted: str) -> int | None:
    """Return the index of a column. Spark's column names are case-insensitive."""
    found = [index for index, name in enumerate(columns) if name.lower() == wanted]
    if found:
        return found[0]
    if wanted == "headers":
        return None
    hint = ", or pass exchange => 'name' if all messages go to one exchange" if wanted == "exchange" else ""
    raise InvalidValueError(
        f"{ROUTE}: the messages have no column {wanted}: found the columns {', '.join(columns)}. "
        f"Rename the right one, as in TABLE(SELECT *, key AS {wanted} FROM messages){hint}"
    )


def _required(argument: AnalyzeArgument, name: str) -> str:
    value = _constant(argument, name)
    if value is None:
        raise InvalidValueError(f"{ROUTE}: {name} must be the path of a definitions file, got NULL")
    return value


def _constant(argument: AnalyzeArgument | None, name: str) -> str | None:
    if argument is None:
        return None
    if not argument.isConstantExpression or not isinstance(argument.value, str | None):
        raise InvalidValueError(f"{ROUTE}: {name} must be a constant string, got type {argument.dataType.simpleString()}")
    return argument.value


def remembering(topology: PackedTopology) -> Find:
    """Return a function that routes with this topology, each signature once. Runs on the executors, once per task."""
    router = topology.router()

    @lru_cache(maxsize=SIGNATURES_KEPT)
    def find(exchange: str | None, key: str | None, headers: str | None) -> tuple[tuple[str, ...], str | None]:
        return queues_of(router, exchange, key, headers)

    return find


def headers_text(headers: Any) -> str | None:
    """Return headers as JSON text in the notation of `table_json`. They are JSON text, a map or a struct."""
    if headers is None or isinstance(headers, str):
        return headers
    if not isinstance(headers, Mapping | Row):
        raise InvalidValueError(f"headers must be JSON text, a map or a struct, got {type(headers).__name__}")
    return json.dumps(to_json(_field_value(headers)))


def _field_value(value: Any) -> FieldValue:
    if isinstance(value, Row):  # a struct has all its fields in each row, so null means that a message lacks the header
        return {name: _field_value(item) for name, item in value.asDict().items() if item is not None}
    if isinstance(value, Mapping):
        return {name: _field_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_field_value(item) for item in value]
    if value is None or isinstance(value, PLAIN):
        return value
    raise InvalidValueError(
        f"headers contain a value of type {type(value).__name__}: expected text, numbers, booleans or binary. "
        'Write other values as JSON text, such as {"when": {"$timestamp": 1700000000}}'
    )
