"""The signatures of a batch of messages, as columns: which are distinct, and which row has which. Runs on the executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holtmq.spark.headers_json import are_plain
from holtmq.spark.key_classes import Integers
from holtmq.spark.routing_inputs import RoutingInputs
from holtmq.spark.signature_value import SignatureValue, Text, texts
from holtmq.table import SHORT_STRING_BYTES

DistinctKeys: TypeAlias = Callable[[pa.Array], tuple[list[Text], Integers]]
"""Returns keys that represent all keys of a column, and for each row the index of its representative."""


@dataclass(frozen=True, slots=True)
class SignatureBatch:
    """The columns of the signature. One that is None is the same for all messages."""

    routing_key: pa.Array
    exchange: pa.Array | None = None
    headers: pa.Array | None = None
    """JSON text."""

    def distinct(
        self, exchange: str | None, inputs: RoutingInputs, distinct_keys: DistinctKeys
    ) -> tuple[list[SignatureValue], Integers]:
        """Return the distinct signatures, and for each row the index of its signature.

        Without an exchange column, all messages go to `exchange`.
        """
        exchanges: list[Text] = [exchange]
        headers: list[Text] = [None]
        exchange_of_row = np.zeros(len(self.routing_key), dtype=np.int64)
        if self.exchange is not None:
            exchanges, exchange_of_row = _distinct(self.exchange)
        key_column = self.routing_key
        if not inputs.keyless_exchanges.isdisjoint(exchanges):
            is_keyless = np.array([each in inputs.keyless_exchanges for each in exchanges])[exchange_of_row]
            key_column = _without_keys(key_column, is_keyless)
        keys, of_row = distinct_keys(key_column)
        if self.exchange is None and self.headers is None:
            return [(exchange, key, None) for key in keys], of_row
        of_row = of_row * len(exchanges) + exchange_of_row
        if self.headers is not None:
            headers, headers_of_row = _distinct(self.headers)
            if not inputs.header_names:
                headers, headers_of_row = _without_plain(headers, headers_of_row)
            of_row = of_row * len(headers) + headers_of_row
        if len(exchanges) == len(headers) == 1:
            return [(exchanges[0], key, headers[0]) for key in keys], of_row
        numbers, of_row = np.unique(of_row, return_inverse=True)
        signatures = []
        for number in numbers.tolist():
            before, header = divmod(number, len(headers))
            key, source = divmod(before, len(exchanges))
            signatures.append((exchanges[source], keys[key], headers[header]))
        return signatures, of_row


def _distinct(column: pa.Array) -> tuple[list[Text], Integers]:
    """Return the distinct values of a column as a list, and for each row the index of its value. Null counts as a value."""
    values, of_row = encode(column)
    return texts(values), of_row


def encode(column: pa.Array) -> tuple[pa.Array, Integers]:
    """Return the distinct values, with null last if present, and for each row the index of its value."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values, indices = encoded.dictionary, encoded.indices
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _without_keys(keys: pa.Array, is_keyless: Integers) -> pa.Array:
    """Replace the key by "" where the exchange ignores it. Invalid keys (null or too long) stay, to be reported."""
    plain = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    if not is_utf8(plain):
        return keys  # rare, and only slower
    is_valid = pc.less_equal(pc.binary_length(plain), SHORT_STRING_BYTES).fill_null(False)
    return pc.if_else(pc.and_(pa.array(is_keyless), is_valid), pa.scalar("", plain.type), plain)


def is_utf8(column: pa.Array) -> bool:
    """Return whether all values of a string column are valid UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _without_plain(headers: list[Text], of_row: Integers) -> tuple[list[Text], Integers]:
    """Replace headers that cannot affect the route by null."""
    numbers: dict[Text, int] = {}
    for_text = [numbers.setdefault(None if text is None or are_plain(text) else text, len(numbers)) for text in headers]
    return list(numbers), np.array(for_text, dtype=np.int64)[of_row]
