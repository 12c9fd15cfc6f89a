"""Deduplication in streams: the headers by which a publisher numbers its messages, so that each is stored once."""

from __future__ import annotations

from holtmq.errors import FrameError
from holtmq.queueing.argument_values import LARGEST
from holtmq.wire.content import Properties, encode_properties
from holtmq.wire.tables import drop_field

PUBLISHER_HEADER, PUBLISHING_ID_HEADER = "x-publisher", "x-publishing-id"
NUMBERING_HEADERS = (PUBLISHER_HEADER, PUBLISHING_ID_HEADER)
PUBLISHER = PUBLISHER_HEADER.encode()
LONGEST_NAME = 255
"""Characters of the name of a publisher, as in RabbitMQ's stream protocol. The file keeps the names for ever."""


def numbered_by(properties: Properties) -> tuple[str, int] | None:
    """Return the publisher and the publishing id of a message. Without both of them, valid, it is not numbered."""
    if PUBLISHER not in properties.raw:
        return None
    try:
        headers = properties.headers
    except FrameError:
        return None
    publisher, number = headers.get(PUBLISHER_HEADER), headers.get(PUBLISHING_ID_HEADER)
    if not isinstance(publisher, str) or not isinstance(number, int) or isinstance(number, bool):
        return None
    return (publisher, number) if 0 < len(publisher) <= LONGEST_NAME and 0 <= number <= LARGEST else None


def unnumbered(raw: bytes) -> bytes:
    """Return properties without the headers that number a message.

    For a message that somebody else than its publisher appends to a stream. It may come in another order than its publisher
    gave it, and a stream only keeps the highest id of a publisher: it would take the message for one that it has.
    """
    if PUBLISHER not in raw:
        return raw
    properties = Properties(raw)
    try:
        headers = properties.raw_headers()
        for name in NUMBERING_HEADERS:
            headers = drop_field(headers, name)
    except FrameError:  # headers that cannot be read number nothing
        return raw
    return encode_properties({**properties.without_headers(), "headers": headers})
