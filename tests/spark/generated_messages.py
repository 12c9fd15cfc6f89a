"""Strategies for encoded properties: every type of AMQP in the headers, every width of a number, and odd texts."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from holtmq.spark.amqp.encoded_properties import encode_property, join_properties, split_properties
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


def encoded_properties(
    texts: st.SearchStrategy[bytes], names: st.SearchStrategy[bytes] | None = None
) -> st.SearchStrategy[bytes]:
    """Properties as a publisher may send them. Their texts are of this strategy, and the names of their headers of the other.

    By default, both are of the first.
    """
    names = texts if names is None else names
    fields: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(NAMES, texts.map(_short)),
        "headers": _table(_values(names), names),
        "delivery_mode": st.sampled_from([b"\x01", b"\x02"]),
        "priority": st.binary(min_size=1, max_size=1),
        "timestamp": st.one_of(
            st.binary(min_size=8, max_size=8), st.integers(0, 2**42).map(lambda number: number.to_bytes(8, "big"))
        ),
        "expiration": st.just(encode_property("expiration", "100000000")),
        "user_id": st.just(encode_property("user_id", "guest")),
    }
    return st.fixed_dictionaries({}, optional=fields).map(join_properties)


@st.composite
def with_more_keys(draw: st.DrawFn, properties: st.SearchStrategy[bytes]) -> tuple[bytes, bytes]:
    """Properties with the headers CC and BCC, or one of them, as they are sent and as they are delivered: without BCC."""
    fields = split_properties(draw(properties))
    others = fields.get("headers", bytes(4))[4:]
    keys = st.lists(any_bytes.map(lambda key: b"S" + long_string(key)), max_size=3).map(b"".join)
    cc, bcc = (_short(name) + b"A" + long_string(draw(keys)) for name in SPECIAL_HEADERS)
    kept, removed = draw(st.sampled_from([(cc, b""), (b"", bcc), (cc, bcc)]))
    sent, delivered = (
        join_properties({**fields, "headers": long_string(table)}) for table in (removed + others + kept, others + kept)
    )
    return sent, delivered
