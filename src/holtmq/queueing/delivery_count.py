"""The `x-delivery-count` header, by which a quorum queue tells a consumer how often a message was delivered before."""

from __future__ import annotations

from holtmq.errors import FrameError
from holtmq.wire.content import Properties, encode_properties
from holtmq.wire.tables import encode_value, join_table, split_table

DELIVERY_COUNT = "x-delivery-count"


def with_delivery_count(properties: Properties, count: int) -> bytes:
    """Return the encoded properties with the header set; unchanged if the headers cannot be decoded."""
    try:
        fields = split_table(properties.raw_headers())
    except FrameError:
        return properties.raw
    fields[DELIVERY_COUNT] = encode_value(count)
    return encode_properties({**properties.without_headers(), "headers": join_table(fields)})
