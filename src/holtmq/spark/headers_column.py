"""A headers column of any type as Spark expressions: JSON text in the notation of `table_json`. Runs on the driver.

The rows stay in the JVM. The text contains only the headers that can affect a route.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column
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

MORE_KEYS = ("CC", "BCC")
"""Headers that add routing keys on every exchange."""
AFTER = "__holtmq_after"


def headers_text(headers: Column, type_: DataType, decisive: Collection[str]) -> Column | None:
    """Return JSON text of the headers that affect the route, or null. Invalid headers stay as they are, to be reported.

    Return None if the type of the column is not supported. Bindings read the `decisive` headers.
    """
    names = sorted({*decisive, *MORE_KEYS})
    match type_:
        case StringType() if decisive:
            return headers
        case StringType():
            return F.when(_may_matter(headers) | ~_is_object(headers), headers)
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
            return None


def _is_object(text: Column) -> Column:
    """Return whether the text is a JSON object, and nothing follows it: Spark ignores that unless it is part of another one."""
    within = F.concat(F.lit('{"h":'), text, F.lit(f',"{AFTER}":0}}'))
    is_whole = F.coalesce(F.json_object_keys(within) == F.array(F.lit("h"), F.lit(AFTER)), F.lit(False))
    return is_whole & F.json_object_keys(text).isNotNull() & F.is_valid_utf8(text)


def _may_matter(text: Column) -> Column:
    """Return whether the text may contain the name CC or BCC or a value that JSON lacks, possibly escaped as \\u0043C."""
    return text.contains('CC"') | text.contains('"$') | text.contains("\\u")


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
