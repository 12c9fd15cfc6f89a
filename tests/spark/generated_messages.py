"""Strategies for encoded properties: every type of AMQP in the headers, every width of a number, and odd texts."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from holtmq.spark.amqp.encoded_properties import encode_property, join_properties
from holtmq.wire.content import NAMES
from holtmq.wire.tables import long_string

utf8 = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(str.encode)
any_bytes = st.binary(max_size=20)
SPECIAL_HEADERS = (b"CC", b"BCC")
"""Headers that route a message to further queues."""


def _integers(letter: bytes, code: str) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=struct.calcsize(code), max_size=struct.calcsize(code)).map(lambda content: letter + content)


def _short(content: bytes) -> bytes:
    return bytes((len(content),)) + content


def _table(values: st.SearchStrategy[bytes], names: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Tables with any fields, of which several may have the same name."""
    fields = st.tuples(names.filter(lambda name: name not in SPECIAL_HEADERS).map(_short), values).map(b"".join)
    return st.lists(fields, max_size=4).map(b"".join).map(long_string)


def _values(names: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    numbers = [_integers(letter.encode(), f">{code}") for letter, code in zip("bBsuIilL", "bBhHiIqq", strict=True)]
    # Erlang has no floats that are infinite or not a number: RabbitMQ refuses them
    floats = [
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: b"f" + struct.pack(">f", value)),
        st.floats(width=64, allow_nan=False, allow_infinity=False).map(lambda value: b"d" + struct.pack(">d", value)),
    ]
    others = [
        st.sampled_from([b"t\x00", b"t\x01", b"V"]),
        any_bytes.map(lambda content: b"S" + long_string(content)),
        any_bytes.map(lambda content: b"x" + long_string(content)),
        _integers(b"T", ">q"),
        _integers(b"D", ">Bi"),
    ]
    return st.recursive(
        st.one_of(*numbers, *floats, *others),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(b"".join).map(lambda items: b"A" + long_string(items)),
            _table(inner, names).map(lambda table: b"F" + table),
        ),
        max_leaves=5,
    )


def encoded_properties(texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Properties as a publisher may send them. Their texts, and the names of their headers, are of this strategy."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(NAMES, texts.map(_short)),
        "headers": _table(_values(texts), texts),
        "delivery_mode": st.sampled_from([b"\x01", b"\x02"]),
        "priority": st.binary(min_size=1, max_size=1),
        "timestamp": st.one_of(
            st.binary(min_size=8, max_size=8), st.integers(0, 2**42).map(lambda number: number.to_bytes(8, "big"))
        ),
        "expiration": st.just(encode_property("expiration", "100000000")),
        "user_id": st.just(encode_property("user_id", "guest")),
    }
    return st.fixed_dictionaries({}, optional=fields).map(join_properties)
