"""The SQL functions that `register` adds to a session: `holtmq_route` returns a table, `holtmq_queues` an array.

The driver reads the topology and sends it to the executors, which route each distinct signature once and keep the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, NullType, StringType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, SelectedColumn, UserDefinedTableFunction

from holtmq.errors import InvalidValueError
from holtmq.routing import Router
from holtmq.spark.added_columns import QUEUE_AND_REASON
from holtmq.spark.message_columns import MessageColumns
from holtmq.spark.packed_topology import PackedTopology
from holtmq.spark.route_cache import SIGNATURES_KEPT, RouteCache
from holtmq.spark.route_outcome import RouteOutcome
from holtmq.spark.routing_inputs import RoutingInputs
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature import refused_type, require_text_type
from holtmq.spark.signature_batch import SignatureBatch
from holtmq.spark.signature_value import Text
from holtmq.spark.sql_arguments import HEADERS_TYPES, headers_column, headers_text, text_column, text_of
from holtmq.topology import DEFAULT_VHOST, Topology

ROUTE, QUEUES = "holtmq_route", "holtmq_queues"
NOTHING = "CAST(NULL AS BINARY)"
Find = Callable[[Text, Text, Text], RouteOutcome]
"""Routes the signature of a message."""


def register_functions(spark: SparkSession, topology: Topology | None, vhost: str) -> None:
    """Add `holtmq_route` and, for a topology, `holtmq_queues` to the SQL of a session. Runs on the driver."""
    spark.udtf.register(ROUTE, cast("UserDefinedTableFunction", F.udtf(RouteFunction, useArrow=False)))
    if topology is None:
        return
    function, result = QueuesFunction(topology, vhost), ArrayType(StringType())
    if hasattr(F, "arrow_udf"):
        spark.udf.register(QUEUES, F.arrow_udf(function.find_all, result))
    else:  # before Spark 4.1
        spark.udf.register(QUEUES, F.udf(function.find, result, useArrow=True))


class QueuesFunction:
    """`holtmq_queues(exchange, routing_key, headers)`. Created on the driver, called on the executors.

    The names of the parameters are those of the arguments in SQL.
    """

    def __init__(self, topology: Topology, vhost: str) -> None:
        router = Router(topology, vhost)  # raises an error where the user sees it: on the driver
        self._spec = RoutingSpec(PackedTopology.of(topology, vhost), RoutingInputs.of(router))
        self._find: Find | None = None

    def find_all(self, exchange: pa.Array, routing_key: pa.Array, headers: pa.Array = None) -> pa.Array:
        """Return the queues that each message reaches, or null if no broker would accept it. Called once per batch."""
        cache = RouteCache.shared(self._spec)
        keys, exchanges = text_column(routing_key, "routing key"), text_column(exchange, "exchange")
        outcomes = cache.outcomes(SignatureBatch(keys, exchanges, headers_column(headers)))
        return pa.concat_arrays([_queues(lists) for lists in cache.lists(outcomes)] or [pa.array([], pa.list_(pa.string()))])

    def find(self, exchange: Any, routing_key: Any, headers: Any = None) -> list[str] | None:
        """Do the same for one message, for versions of Spark without Arrow functions."""
        if self._find is None:
            self._find = remembering(self._spec.topology)
        outcome = self._find(text_of(exchange, "exchange"), text_of(routing_key, "routing key"), headers_text(headers))
        return [queue for queue in outcome.queues if queue is not None] if outcome.reason is None else None


def _queues(lists: pa.ListArray) -> pa.ListArray:
    """Return the queues in lists of rows, or null instead of a row with a reason. A list has at least one row."""
    rows, offsets = lists.values, lists.offsets.to_numpy()
    queues, is_refused = rows.field("queue"), rows.field("reason").is_valid().to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(queues.is_valid().to_numpy(zero_copy_only=False))])
    new_offsets, mask = pa.array(before[offsets], pa.int32()), pa.array(is_refused[offsets[:-1]])
    return pa.ListArray.from_arrays(new_offsets, queues.drop_null(), mask=mask)


@dataclass
class RouteAnalysis(AnalyzeResult):
    """The result schema of `holtmq_route`, and what the executors need. Spark pickles it."""

    topology: PackedTopology | None = None
    exchange: str | None = None


class RouteFunction:
    """`holtmq_route(TABLE(messages), 'definitions.json', vhost => '/', exchange => 'orders')`.

    Spark calls `analyze` in a Python process on the driver, and creates one instance for each partition on the executors.
    """

    def __init__(self, analysis: RouteAnalysis) -> None:
        assert analysis.topology is not None
        self._find = remembering(analysis.topology)
        self._exchange = analysis.exchange
        self._width = len(analysis.schema) - len(QUEUE_AND_REASON.names)

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
        columns = messages.dataType
        MessageColumns(columns, is_case_sensitive=False).require_free(QUEUE_AND_REASON.names)
        select = [
            SelectedColumn("struct(*)", "message"),
            SelectedColumn(_text_expression(columns, "routing_key", "routing key"), "routing_key"),
            SelectedColumn(_text_expression(columns, "exchange", "exchange") if fixed is None else NOTHING, "exchange"),
            SelectedColumn(_headers_expression(columns), "headers"),
        ]
        schema = StructType([*columns, *(StructField(name, type_) for name, type_ in QUEUE_AND_REASON.types.items())])
        return RouteAnalysis(schema, select=select, topology=PackedTopology.of(topology, name), exchange=fixed)

    def eval(self, selected: Row, *_: object, **__: object) -> Iterator[tuple[Any, ...]]:
        """Yield the message once for each queue that it reaches, or once with the reason if a broker would refuse it."""
        message, key, exchange, headers = selected
        source = self._exchange if self._exchange is not None else text_of(exchange, "exchange")
        outcome = self._find(source, text_of(key, "routing key"), headers_text(headers))
        columns = message[: self._width]  # with PARTITION BY, Spark adds columns
        for queue in outcome.queues:
            yield (*columns, queue, outcome.reason)


def _text_expression(columns: StructType, name: str, what: str) -> str:
    """Return SQL for the bytes of a text column: Spark replaces what is not UTF-8 in a string on its way to Python."""
    field = _find_column(columns, name)
    if field is None:
        hint = ", or pass exchange => 'name' if all messages go to one exchange" if name == "exchange" else ""
        raise InvalidValueError(
            f"{ROUTE}: the messages have no column {name}: found the columns {', '.join(columns.names)}. "
            f"Rename the right one, as in TABLE(SELECT *, key AS {name} FROM messages){hint}"
        )
    require_text_type(field, what)
    return f"CAST(CAST({name} AS STRING) AS BINARY)"


def _headers_expression(columns: StructType) -> str:
    """Return SQL for the headers: the bytes of JSON text, a map or a struct."""
    field = _find_column(columns, "headers")
    if field is None or isinstance(field.dataType, NullType):
        return NOTHING
    match field.dataType:
        case StringType():
            return "CAST(headers AS BINARY)"
        case MapType(keyType=StringType()) | StructType():
            return "headers"
    raise refused_type(field, "headers", HEADERS_TYPES)


def _find_column(columns: StructType, name: str) -> StructField | None:
    """Return the column with this name, or None.

    `analyze` does not know `spark.sql.caseSensitive`. It prefers the column with exactly this name. Spark applies its rule when
    it resolves the expressions, and fails if another column, several or none have the name then.
    """
    exact = MessageColumns(columns, is_case_sensitive=True).find(name)
    return exact or MessageColumns(columns, is_case_sensitive=False).find(name)


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
    def find(exchange: Text, key: Text, headers: Text) -> RouteOutcome:
        return RouteOutcome.of(router, (exchange, key, headers), QUEUE_AND_REASON)

    return find
