"""A message by which a stream is recognised. AMQP gives a stream no identity besides its name, which another one may get."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from holtmq.client.offset_consumer import offset_of
from holtmq.protocol.client_connection import Delivery
from holtmq.wire.content import Properties


@dataclass(frozen=True, slots=True)
class StreamMark:
    """The offset of a message, and a digest of what identifies it."""

    offset: int
    digest: str

    @classmethod
    def of(cls, delivery: Delivery, queue: str) -> StreamMark:
        """Return the mark of a message that is not damaged.

        Headers do not count: brokers add some, and a new version of a broker may give their values other types.
        """
        properties = Properties(delivery.raw_properties).without_headers()
        identity = (delivery.exchange, delivery.routing_key, properties.get("message_id"), properties.get("timestamp"))
        return cls(offset_of(delivery, queue), blake2b(ascii(identity).encode() + delivery.body, digest_size=8).hexdigest())
