"""The signature of a message: the part of it that determines its route.

A signature is `(exchange, routing_key, headers)`. The headers are JSON text in the notation of `table_json`, reduced to those
that can affect the route. On the driver, `Signature` builds Spark expressions for its parts, so the rows stay in the JVM. On
the executors, `read_headers` turns the JSON text back into a table.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from holtmq.errors import InvalidValueError
from holtmq.routing import Router
from holtmq.table import SHORT_STRING_BYTES, FieldValue, describe
from holtmq.table_json import from_json

SignatureValue: TypeAlias = tuple[str | None, str | None, str | None]
"""Exchange, routing key, and the headers as JSON text."""
MORE_KEYS = ("CC", "BCC")
"""Headers that add routing keys on every exchange."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that contain the routing key, the exchange and the headers of a message."""

    routing_key: str = "routing_key"
    exchange: str = "exchange"
    headers: str = "headers"


DEFAULT_COLUMNS = Columns()


class RoutingInputs(NamedTuple):
    """The parts of a message that can affect its route."""

    header_names: frozenset[str]
    """Headers that at least one binding reads."""
    keyless_exchanges: frozenset[str]
    """Exchanges that ignore the routing key."""

    @classmethod
    def of(cls, *routers: Router) -> RoutingInputs:
        """Return the parts that can affect the route in at least one of the routers. Runs on the driver."""
        header_names = frozenset().union(*(router.header_names() for router in routers))
        return cls(header_names, frozenset.intersection(*(frozenset(router.keyless_exchanges()) for router in routers)))


@dataclass(frozen=True, slots=True)
class SignaturePart:
    """A part of a signature that differs between messages."""

    column: Column
    """A Spark expression for its value."""
    name: str
    """Name of the column that contains this value."""
    is_added: bool
    """Whether that column must be added to the messages first."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parts of a signature as Spark expressions. A part that is None is the same for all messages."""

    routing_key: SignaturePart
    exchange: SignaturePart | None
    headers: SignaturePart | None

    @classmethod
    def of(cls, messages: DataFrame, columns: Columns, exchange: str | None, inputs: RoutingInputs) -> Signature:
        """Find the signature of these messages, which all go to `exchange` if it is not None. Runs on the driver."""
        key = _text_part(messages, columns.routing_key, "routing key")
        source = _text_part(messages, columns.exchange, "exchange") if exchange is None else None
        if inputs.keyless_exchanges:
            is_keyless = (
                F.lit(exchange in inputs.keyless_exchanges) if source is None else source.column.isin(*inputs.keyless_exchanges)
            )
            is_valid = F.octet_length(key.column) <= SHORT_STRING_BYTES
            name = f"__holtmq_{columns.routing_key}"
            key = SignaturePart(F.when(is_keyless & is_valid, F.lit("")).otherwise(key.column), name, is_added=True)
        return cls(key, source, _headers_part(messages, columns.headers, inputs.header_names))

    @property
    def parts(self) -> list[SignaturePart]:
        """The parts that differ between messages."""
        return [part for part in (self.exchange, self.routing_key, self.headers) if part is not None]


def quote_name(name: str) -> str:
    """Quote a column name. Spark reads an unquoted dot as access to a field."""
    return f"`{name.replace('`', '``')}`"


def _text_part(messages: DataFrame, name: str, what: str) -> SignaturePart:
    column = _require(messages, name, what)
    if isinstance(messages.schema[name].dataType, StringType):
        return SignaturePart(column, name, is_added=False)
    return SignaturePart(column.cast("string"), f"__holtmq_{name}", is_added=True)


def _headers_part(messages: DataFrame, name: str, decisive: Collection[str]) -> SignaturePart | None:
    if name not in messages.columns:
        return None
    type_ = messages.schema[name].dataType
    if isinstance(type_, StringType) and decisive:
        return SignaturePart(messages[quote_name(name)], name, is_added=False)
    return SignaturePart(
        _headers(messages[quote_name(name)], type_, sorted({*decisive, *MORE_KEYS})), "__holtmq_headers", is_added=True
    )


def _require(messages: DataFrame, name: str, what: str) -> Column:
    if name in messages.columns:
        return messages[quote_name(name)]
    hint = ", or pass exchange= if all messages go to one exchange" if what == "exchange" else ""
    raise InvalidValueError(
        f"the messages have no column {name!r} for the {what}: found the columns {', '.join(messages.columns)}. "
        f"Pass columns=Columns(…) with the right name{hint}"
    )


def _headers(headers: Column, type_: DataType, names: list[str]) -> Column:
    """Return JSON text of the headers that affect the route, or null. Invalid headers stay as they are, to be reported."""
    match type_:
        case StringType():
            return F.when(_adds_keys(headers) | ~_is_object(headers), headers)
        case MapType(keyType=StringType(), valueType=value_type):
            chosen = F.map_filter(headers, lambda name, _: name.isin(names))
            typed = (
                F.transform_values(chosen, lambda _, value: _tagged(value, value_type)) if _needs_tags(value_type) else chosen
            )
            return F.when(F.size(chosen) > 0, F.to_json(typed))
        case StructType():
            fields = [field for field in type_ if field.name in names]
            chosen = F.struct(*(_tagged(headers[field.name], field.dataType).alias(field.name) for field in fields))
            return F.when(headers.isNotNull(), F.to_json(chosen)) if fields else F.lit(None).cast("string")
        case VariantType():
            return _variant_headers(headers, names)
        case _:
            expected = "a map with string keys, a struct, VARIANT or JSON text"
            raise InvalidValueError(f"the headers column must be {expected}, got type {type_.simpleString()}")


def _is_object(text: Column) -> Column:
    return F.json_object_keys(text).isNotNull()


def _adds_keys(text: Column) -> Column:
    """Return whether the text may contain the name CC or BCC, possibly escaped as \\u0043C."""
    return text.contains('CC"') | text.contains("\\u")


def _variant_headers(headers: Column, names: list[str]) -> Column:
    parts = []
    for name in names:
        quote = "'" if '"' in name else '"'
        value = F.try_variant_get(headers, f"$[{quote}{name}{quote}]", "variant")
        parts.append(F.concat(F.to_json(F.lit(name).cast("variant")), F.lit(":"), _variant_text(value)))
    chosen = F.concat(F.lit("{"), F.concat_ws(",", *parts), F.lit("}"))
    return F.when(F.schema_of_variant(headers).startswith("OBJECT"), chosen).otherwise(F.to_json(headers))


def _variant_text(value: Column) -> Column:
    """Return a VARIANT as JSON text. VARIANT stores 1.0 as a decimal; written as 1 it would match an integer."""
    type_ = F.schema_of_variant(value)
    decimal = F.to_json(F.try_variant_get(value, "$", "double").cast("variant"))
    seconds = F.unix_seconds(F.try_variant_get(value, "$", "timestamp"))
    return (
        F.when(type_.startswith("DECIMAL"), decimal)
        .when(type_.startswith("TIMESTAMP"), F.to_json(F.struct(seconds.alias("$timestamp"))))
        .when(type_ == "BINARY", F.to_json(F.struct(F.base64(F.try_variant_get(value, "$", "binary")).alias("$bytes"))))
        .otherwise(F.to_json(value))
    )


def _needs_tags(type_: DataType) -> bool:
    """Return whether JSON lacks a notation for values of this type."""
    match type_:
        case BinaryType() | DecimalType() | TimestampType() | TimestampNTZType():
            return True
        case ArrayType(elementType=inner) | MapType(valueType=inner):
            return _needs_tags(inner)
        case StructType():
            return any(_needs_tags(field.dataType) for field in type_)
        case _:
            return False


def _tagged(value: Column, type_: DataType) -> Column:
    """Return the value such that Spark's `to_json` writes it in the notation of `table_json`."""
    if not _needs_tags(type_):
        return value
    match type_:
        case BinaryType():
            return F.when(value.isNotNull(), F.struct(F.base64(value).alias("$bytes")))
        case DecimalType():
            return F.when(value.isNotNull(), F.struct(value.cast("string").alias("$decimal")))
        case TimestampType() | TimestampNTZType():
            return F.when(value.isNotNull(), F.struct(F.unix_seconds(value.cast("timestamp")).alias("$timestamp")))
        case ArrayType(elementType=inner):
            return F.transform(value, lambda item: _tagged(item, inner))
        case MapType(valueType=inner):
            return F.transform_values(value, lambda _, item: _tagged(item, inner))
        case StructType():
            return F.when(
                value.isNotNull(), F.struct(*(_tagged(value[field.name], field.dataType).alias(field.name) for field in type_))
            )
    return value


def read_headers(text: str) -> dict[str, FieldValue]:
    """Parse headers from JSON text in the notation of `table_json`. Raise InvalidValueError if that is not possible."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"headers: expected a JSON object, got {_shortened(text)} ({error})") from error
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise InvalidValueError(f"headers: expected a JSON object, got {describe(fields)}")
    if "{" in text[1:]:  # otherwise no value can use the notation for types that JSON lacks
        try:
            return {name: from_json(value, f"headers.{name}") for name, value in fields.items()}
        except RecursionError as error:
            raise InvalidValueError(f"headers: nested too deeply: {_shortened(text)}") from error
    return fields


def _shortened(text: str, length: int = 60) -> str:
    return repr(text if len(text) <= length else text[:length] + "…")
