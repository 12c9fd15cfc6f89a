"""Which columns of a DataFrame say where a message goes, and the signature that routing needs of them.

A signature is `(exchange, routing_key, headers)`, the headers as JSON text in the notation of `table_json` and only as far
as they can make a difference. It is made of Spark expressions, so that the rows themselves never leave the JVM for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

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
from holtmq.table import SHORT_STRING_BYTES

MORE_KEYS = ("CC", "BCC")
"""The headers that add routing keys, whatever the exchange."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns that say where a message goes."""

    routing_key: str = "routing_key"
    exchange: str = "exchange"
    headers: str = "headers"


DEFAULT_COLUMNS = Columns()


class Matters(NamedTuple):
    """What of a message can make a difference to where it goes."""

    headers: frozenset[str]
    """The headers that some binding looks at."""
    keyless: frozenset[str]
    """The exchanges to which the routing key makes none."""

    @classmethod
    def to(cls, *routers: Router) -> Matters:
        """What matters to any of these."""
        headers = frozenset().union(*(router.header_names() for router in routers))
        return cls(headers, frozenset.intersection(*(frozenset(router.keyless_exchanges()) for router in routers)))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a signature that differs between messages: an expression for it, and where it is to be found."""

    column: Column
    name: str
    """A column of the messages that holds just this, or the name of one that has to be added."""
    is_added: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """Where the parts of a signature are. What is None is the same for all messages."""

    routing_key: Part
    exchange: Part | None
    headers: Part | None

    @classmethod
    def of(cls, messages: DataFrame, columns: Columns, exchange: str | None, matters: Matters) -> Signature:
        """`exchange` is that of all messages, if it is given."""
        key = _text_part(messages, columns.routing_key, "routing key")
        source = _text_part(messages, columns.exchange, "exchange") if exchange is None else None
        if matters.keyless:
            is_keyless = F.lit(exchange in matters.keyless) if source is None else source.column.isin(*matters.keyless)
            is_fine = F.octet_length(key.column) <= SHORT_STRING_BYTES
            name = f"__holtmq_{columns.routing_key}"
            key = Part(F.when(is_keyless & is_fine, F.lit("")).otherwise(key.column), name, is_added=True)
        return cls(key, source, _headers_part(messages, columns.headers, matters.headers))

    @property
    def parts(self) -> list[Part]:
        return [part for part in (self.exchange, self.routing_key, self.headers) if part is not None]


def quoted(name: str) -> str:
    """A column's name for Spark, which would take a dot in it for the way to a field."""
    return f"`{name.replace('`', '``')}`"


def _text_part(messages: DataFrame, name: str, what: str) -> Part:
    column = _require(messages, name, what)
    if isinstance(messages.schema[name].dataType, StringType):
        return Part(column, name, is_added=False)
    return Part(column.cast("string"), f"__holtmq_{name}", is_added=True)


def _headers_part(messages: DataFrame, name: str, decisive: Collection[str]) -> Part | None:
    if name not in messages.columns:
        return None
    type_ = messages.schema[name].dataType
    if isinstance(type_, StringType) and decisive:
        return Part(messages[quoted(name)], name, is_added=False)
    return Part(_headers(messages[quoted(name)], type_, sorted({*decisive, *MORE_KEYS})), "__holtmq_headers", is_added=True)


def _require(messages: DataFrame, name: str, what: str) -> Column:
    if name in messages.columns:
        return messages[quoted(name)]
    hint = " (or pass exchange=, if all messages go to one)" if what == "exchange" else ""
    raise InvalidValueError(f"expected a column {name!r} with the {what}{hint}, got the columns {', '.join(messages.columns)}")


def _headers(headers: Column, type_: DataType, names: list[str]) -> Column:
    """JSON text of the headers that matter; null where none does. What can't be read comes through, to be told of."""
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
            expected = "a map from text, a struct, VARIANT or JSON text"
            raise InvalidValueError(f"expected headers as {expected}, got a column of type {type_.simpleString()}")


def _is_object(text: Column) -> Column:
    return F.json_object_keys(text).isNotNull()


def _adds_keys(text: Column) -> Column:
    """Whether the text may name CC or BCC; it may do so in disguise, as \\u0043C."""
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
    """A number with a point is a decimal in a VARIANT, and would lose the point: 1.0 must not become 1."""
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
    """Whether JSON has no notation of its own for values of this type."""
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
    """A value as `to_json` writes it in the notation of `table_json`."""
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
