"""Fuzz targets: field tables and the properties of messages."""

from __future__ import annotations

import json
from contextlib import suppress

from holtmq.errors import FrameError, HoltmqError
from holtmq.table import Table
from holtmq.table_json import table_from_json, table_to_json
from holtmq.wire.content import Properties, body_of, encode_properties, make_content, on_channel, raw_properties_of
from holtmq.wire.tables import decode_table, encode_table, join_table, split_table


def tables(data: bytes) -> None:
    """Decode a table and encode it again, in AMQP and in JSON. The length is added, so that any bytes may be its fields."""
    encoded = len(data).to_bytes(4, "big") + data
    try:
        table, end = decode_table(encoded)
    except FrameError:
        return
    assert end == len(encoded)
    again = encode_table(table)
    assert repr(decode_table(again)[0]) == repr(table)  # by repr, because NaN is not equal to itself
    assert repr(decode_table(join_table(split_table(encoded)))[0]) == repr(table)
    with suppress(HoltmqError):
        _through_json(Table.of(table))


def _through_json(table: Table) -> None:
    assert table_from_json(json.loads(json.dumps(table_to_json(table))), "table") == table


def json_tables(data: bytes) -> None:
    """Read a table from JSON, and write and read it again, in JSON and in AMQP."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    try:
        table = table_from_json(document, "table")
    except (HoltmqError, RecursionError):  # the edges report the latter as JSON that is nested too deeply
        return
    _through_json(table)
    encode_table(table)


def properties(data: bytes) -> None:
    """Decode properties and encode them again, alone and as a part of content."""
    try:
        decoded = Properties(data)
        values = decoded.to_dict()
    except FrameError:
        return
    again = encode_properties(values)
    assert repr(Properties(again).to_dict()) == repr(values)
    assert decode_table(decoded.raw_headers())[0].keys() == decoded.headers.keys()
    content = make_content(data, data)
    assert (raw_properties_of(content), body_of(content)) == (data, data)
    assert len(on_channel(content, 3, 4096)) >= len(content)
