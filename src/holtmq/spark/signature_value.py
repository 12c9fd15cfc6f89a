"""The signature of one message as a value, and what is wrong with it if no broker would accept it. Runs on the executors."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from holtmq.errors import InvalidValueError
from holtmq.spark.headers_json import read_headers
from holtmq.table import FieldValue

Text: TypeAlias = str | bytes | None
"""Text of a column. It is bytes if it is not valid UTF-8: neither Spark nor Arrow checks that."""
SignatureValue: TypeAlias = tuple[Text, Text, Text]
"""Exchange, routing key, and the headers as JSON text."""
NULL_KEY = "the routing key is null"
NULL_EXCHANGE = "the exchange is null"
BYTES_SHOWN = 40


def texts(column: pa.Array) -> list[Text]:
    """Return the values of a string column."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_decoded(value) for value in column.cast(pa.binary()).to_pylist()]


def _decoded(value: bytes | None) -> Text:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def read_signature(exchange: Text, key: Text, headers: Text) -> tuple[str, str, dict[str, FieldValue]]:
    """Return the exchange, the routing key and the headers. Raise InvalidValueError if they are not those of a message."""
    fields = {} if headers is None else read_headers(_require_text(headers, "headers", "are"))
    if key is None or exchange is None:
        raise InvalidValueError(NULL_KEY if key is None else NULL_EXCHANGE)
    return _require_text(exchange, "exchange", "is"), _require_text(key, "routing key", "is"), fields


def _require_text(value: str | bytes, what: str, verb: str) -> str:
    if isinstance(value, str):
        return value
    shown = repr(value[:BYTES_SHOWN]) + ("…" if len(value) > BYTES_SHOWN else "")
    raise InvalidValueError(f"the {what} {verb} not valid UTF-8: {shown}")
