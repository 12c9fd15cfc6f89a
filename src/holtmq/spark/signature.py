"""The signature of a message: the part of it that determines its route.

A signature is `(exchange, routing_key, headers)`. The headers are JSON text in the notation of `table_json`, reduced to those
that can affect the route. On the driver, `Signature` builds Spark expressions for its parts, so the rows stay in the JVM.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType, NullType, StringType, StructField

from holtmq.errors import InvalidValueError
from holtmq.spark.headers_column import headers_text
from holtmq.spark.message_columns import MessageColumns, quote_name
from holtmq.spark.routing_inputs import RoutingInputs
from holtmq.spark.routing_request import DEFAULT_COLUMNS, Columns
from holtmq.table import SHORT_STRING_BYTES

TEXT_TYPES = "string, binary (as UTF-8) or an integer type"
HEADERS_TYPES = "a map with string keys, a struct, VARIANT or a string (as JSON text)"


@dataclass(frozen=True, slots=True)
class SignaturePart:
    """A part of a signature that differs between messages."""

    column: Column
    """A Spark expression for its value, which is text."""
    text_column: str | None
    """Name of the column that contains the value as text, or None if there is no such column."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parts of a signature as Spark expressions. A part that is None is the same for all messages."""

    routing_key: SignaturePart
    exchange: SignaturePart | None
    headers: SignaturePart | None

    @classmethod
    def of(cls, messages: DataFrame, columns: Columns, exchange: str | None, inputs: RoutingInputs) -> Signature:
        """Find the signature of these messages, which all go to `exchange` if it is not None. Runs on the driver."""
        found = MessageColumns.of(messages)
        key = _text_part(messages, found, columns.routing_key, "routing key")
        source = _text_part(messages, found, columns.exchange, "exchange") if exchange is None else None
        return cls(key, source, _headers_part(messages, found, columns.headers, inputs.header_names))

    def without_ignored_keys(self, exchange: str | None, inputs: RoutingInputs) -> Signature:
        """Replace the routing key by "" where the exchange ignores it. Keys that are not valid stay, to be reported."""
        if not inputs.keyless_exchanges:
            return self
        key, source = self.routing_key.column, F.lit(exchange) if self.exchange is None else self.exchange.column
        is_ignored = source.isin(*inputs.keyless_exchanges) & (F.octet_length(key) <= SHORT_STRING_BYTES) & F.is_valid_utf8(key)
        return replace(self, routing_key=SignaturePart(F.when(is_ignored, F.lit("")).otherwise(key), None))

    @property
    def parts(self) -> dict[str, Column]:
        """The parts that differ between messages, by name."""
        return {name: part.column for name, part in self._named().items()}

    def text_columns(self) -> dict[str, str] | None:
        """Return the names of the columns that contain the parts as text, or None if not all of them are text."""
        names = {name: part.text_column for name, part in self._named().items()}
        found = {name: column for name, column in names.items() if column is not None}
        return found if len(found) == len(names) else None

    def _named(self) -> dict[str, SignaturePart]:
        parts = {"routing_key": self.routing_key, "exchange": self.exchange, "headers": self.headers}
        return {name: part for name, part in parts.items() if part is not None}


def _text_part(messages: DataFrame, found: MessageColumns, name: str, what: str) -> SignaturePart:
    field = found.require(name, what)
    require_text_type(field, what)
    column = messages[quote_name(field.name)]
    if isinstance(field.dataType, StringType):
        return SignaturePart(_plain_text(column, field.dataType), field.name)
    return SignaturePart(column.cast("string"), None)


def require_text_type(field: StructField, what: str) -> None:
    """Raise InvalidValueError if the values of a column cannot be routing keys or names of exchanges."""
    if not isinstance(field.dataType, StringType | BinaryType | IntegralType | NullType):
        raise refused_type(field, what, TEXT_TYPES)


def _headers_part(messages: DataFrame, found: MessageColumns, name: str, decisive: Collection[str]) -> SignaturePart | None:
    field = found.find(name) if name == DEFAULT_COLUMNS.headers else found.require(name, "headers")
    if field is None or isinstance(field.dataType, NullType):
        return None
    column, text_column = messages[quote_name(field.name)], None
    if isinstance(field.dataType, StringType):
        column, text_column = _plain_text(column, field.dataType), field.name
    text = headers_text(column, field.dataType, decisive)
    if text is None:
        raise refused_type(field, "headers", HEADERS_TYPES)
    return SignaturePart(text, text_column)


def _plain_text(column: Column, type_: StringType) -> Column:
    """Return the text without its collation: a collation may call different keys equal, which no broker does."""
    return column if type_.isUTF8BinaryCollation() else F.collate(column, "UTF8_BINARY")


def refused_type(field: StructField, what: str, expected: str) -> InvalidValueError:
    """Return the error for a column whose type is not one of those expected."""
    seen = field.dataType.simpleString()
    return InvalidValueError(f"the column {field.name!r} for the {what} has type {seen}: expected {expected}")
