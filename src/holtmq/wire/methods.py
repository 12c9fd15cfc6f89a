"""The methods of AMQP 0-9-1 with RabbitMQ's extensions, as the specification lists them (§1.4 to §1.9 of its reference).

Each is a dataclass whose fields are in wire order and have AMQP's types. Methods on the hot path (publish, deliver, ack) are
also encoded and decoded by hand in `protocol`; the classes here are their readable definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform, get_type_hints

from holtmq.errors import CommandInvalidError, FrameError
from holtmq.table import FieldValue
from holtmq.wire.tables import (
    decode_long_string,
    decode_short_string,
    decode_table,
    encode_table,
    long_string,
    short_string,
)

Bit: TypeAlias = Annotated[bool, "bit"]
Octet: TypeAlias = Annotated[int, 1]
Short: TypeAlias = Annotated[int, 2]
Long: TypeAlias = Annotated[int, 4]
LongLong: TypeAlias = Annotated[int, 8]
ShortStr: TypeAlias = Annotated[str, "shortstr"]
LongStr: TypeAlias = Annotated[bytes, "longstr"]
FieldTable: TypeAlias = Annotated[Mapping[str, FieldValue], "table"]
M = TypeVar("M", bound="Method")


class Method:
    """A method. `class_id` and `method_id` identify it on the wire; `has_content` tells whether content follows it."""

    class_id: ClassVar[int]
    method_id: ClassVar[int]
    has_content: ClassVar[bool] = False
    layout: ClassVar[tuple[tuple[str, object], ...]]

    @classmethod
    def label(cls) -> str:
        """Return the name of the method, as in `queue.declare`."""
        words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in cls.__name__).split()
        return f"{words[0]}.{'-'.join(words[1:])}"


METHODS: dict[tuple[int, int], type[Method]] = {}


def decode_method(payload: bytes, errors: str = "strict") -> Method:
    """Decode a method from the payload of its frame. `errors` tells what to do with texts that are not UTF-8."""
    if len(payload) < 4:
        raise FrameError(f"expected a method of at least 4 bytes, got {len(payload)}")
    class_id, method_id = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
    kind = METHODS.get((class_id, method_id))
    if kind is None:
        raise CommandInvalidError(f"unknown method: class {class_id} method {method_id}")
    values: list[Any] = []
    at, bits, bit = 4, 0, 8
    for name, type_ in kind.layout:
        if type_ == "bit":
            if bit == 8:
                bits, at, bit = _number(payload, at, 1, kind, name), at + 1, 0
            values.append(bool(bits >> bit & 1))
            bit += 1
            continue
        bit = 8
        value, at = _decode_argument(payload, at, type_, kind, name, errors)
        values.append(value)
    if at != len(payload):
        raise FrameError(f"expected {kind.label()} to end after {at} bytes, got {len(payload)}")
    return kind(*values)


def encode_method(method: Method, errors: str = "strict") -> bytes:
    """Encode the payload of a method's frame. `errors` tells what to do with texts that UTF-8 cannot encode."""
    parts = [method.class_id.to_bytes(2, "big"), method.method_id.to_bytes(2, "big")]
    bits: list[bool] = []
    for name, type_ in method.layout:
        value: Any = getattr(method, name)
        if type_ == "bit":
            bits.append(value)
            continue
        parts += _packed(bits)
        bits = []
        parts.append(_encode_argument(value, type_, errors))
    return b"".join(parts + _packed(bits))


def _decode_argument(payload: bytes, at: int, type_: object, kind: type[Method], name: str, errors: str) -> tuple[Any, int]:
    if isinstance(type_, int):
        return _number(payload, at, type_, kind, name), at + type_
    if type_ == "shortstr":
        return _decode_text(payload, at, kind, name, errors)
    if type_ == "longstr":
        return decode_long_string(payload, at)
    return decode_table(payload, at)


def _decode_text(payload: bytes, at: int, kind: type[Method], name: str, errors: str) -> tuple[str, int]:
    try:
        return decode_short_string(payload, at, errors)
    except FrameError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        content = error.__cause__.object[:40]
        raise FrameError(f"expected {name} of {kind.label()} in UTF-8 (AMQP 0-9-1, 4.2.5.3), got {content!r}") from error


def _encode_argument(value: Any, type_: object, errors: str) -> bytes:
    if isinstance(type_, int):
        return int(value).to_bytes(type_, "big")
    if type_ == "shortstr":
        return short_string(value, errors)
    if type_ == "longstr":
        return long_string(value)
    return encode_table(value)


def _number(payload: bytes, at: int, size: int, kind: type[Method], name: str) -> int:
    if at + size > len(payload):
        raise FrameError(f"expected {name} of {kind.label()} at byte {at}, got the end of the method")
    return int.from_bytes(payload[at : at + size], "big")


def _packed(bits: list[bool]) -> list[bytes]:
    octets = (bits[at : at + 8] for at in range(0, len(bits), 8))
    return [bytes((sum(bit << place for place, bit in enumerate(octet)),)) for octet in octets]


@dataclass_transform(field_specifiers=(field,))
def _method(class_id: int, method_id: int, *, has_content: bool = False) -> Callable[[type[M]], type[M]]:
    """Turn a class into a dataclass and register it as a method of the protocol."""

    def register(kind: type[M]) -> type[M]:
        kind = dataclass(slots=True)(kind)
        kind.class_id, kind.method_id, kind.has_content = class_id, method_id, has_content
        hints = get_type_hints(kind, include_extras=True)
        kind.layout = tuple((argument.name, hints[argument.name].__metadata__[0]) for argument in fields(kind))  # type: ignore[arg-type]
        METHODS[class_id, method_id] = kind
        return kind

    return register


@_method(10, 10)
class ConnectionStart(Method):
    version_major: Octet
    version_minor: Octet
    server_properties: FieldTable
    mechanisms: LongStr
    locales: LongStr


@_method(10, 11)
class ConnectionStartOk(Method):
    client_properties: FieldTable
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr


@_method(10, 20)
class ConnectionSecure(Method):
    challenge: LongStr


@_method(10, 21)
class ConnectionSecureOk(Method):
    response: LongStr


@_method(10, 30)
class ConnectionTune(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 31)
class ConnectionTuneOk(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 40)
class ConnectionOpen(Method):
    virtual_host: ShortStr
    capabilities: ShortStr = ""
    insist: Bit = False


@_method(10, 41)
class ConnectionOpenOk(Method):
    known_hosts: ShortStr = ""


@_method(10, 50)
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortStr
    failing_class: Short
    failing_method: Short


@_method(10, 51)
class ConnectionCloseOk(Method):
    pass


@_method(10, 60)
class ConnectionBlocked(Method):
    reason: ShortStr


@_method(10, 61)
class ConnectionUnblocked(Method):
    pass


@_method(10, 70)
class ConnectionUpdateSecret(Method):
    new_secret: LongStr
    reason: ShortStr


@_method(10, 71)
class ConnectionUpdateSecretOk(Method):
    pass


@_method(20, 10)
class ChannelOpen(Method):
    out_of_band: ShortStr = ""


@_method(20, 11)
class ChannelOpenOk(Method):
    channel_id: LongStr = b""


@_method(20, 20)
class ChannelFlow(Method):
    active: Bit


@_method(20, 21)
class ChannelFlowOk(Method):
    active: Bit


@_method(20, 40)
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortStr
    failing_class: Short
    failing_method: Short


@_method(20, 41)
class ChannelCloseOk(Method):
    pass


@_method(40, 10)
class ExchangeDeclare(Method):
    ticket: Short
    exchange: ShortStr
    type: ShortStr
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(40, 11)
class ExchangeDeclareOk(Method):
    pass


@_method(40, 20)
class ExchangeDelete(Method):
    ticket: Short
    exchange: ShortStr
    if_unused: Bit = False
    no_wait: Bit = False


@_method(40, 21)
class ExchangeDeleteOk(Method):
    pass


@_method(40, 30)
class ExchangeBind(Method):
    ticket: Short
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(40, 31)
class ExchangeBindOk(Method):
    pass


@_method(40, 40)
class ExchangeUnbind(Method):
    ticket: Short
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(40, 51)
class ExchangeUnbindOk(Method):
    pass


@_method(50, 10)
class QueueDeclare(Method):
    ticket: Short
    queue: ShortStr
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 11)
class QueueDeclareOk(Method):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@_method(50, 20)
class QueueBind(Method):
    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 21)
class QueueBindOk(Method):
    pass


@_method(50, 30)
class QueuePurge(Method):
    ticket: Short
    queue: ShortStr
    no_wait: Bit = False


@_method(50, 31)
class QueuePurgeOk(Method):
    message_count: Long


@_method(50, 40)
class QueueDelete(Method):
    ticket: Short
    queue: ShortStr
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@_method(50, 41)
class QueueDeleteOk(Method):
    message_count: Long


@_method(50, 50)
class QueueUnbind(Method):
    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 51)
class QueueUnbindOk(Method):
    pass


@_method(60, 10)
class BasicQos(Method):
    prefetch_size: Long
    prefetch_count: Short
    is_global: Bit = False


@_method(60, 11)
class BasicQosOk(Method):
    pass


@_method(60, 20)
class BasicConsume(Method):
    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(60, 21)
class BasicConsumeOk(Method):
    consumer_tag: ShortStr


@_method(60, 30)
class BasicCancel(Method):
    consumer_tag: ShortStr
    no_wait: Bit = False


@_method(60, 31)
class BasicCancelOk(Method):
    consumer_tag: ShortStr


@_method(60, 40, has_content=True)
class BasicPublish(Method):
    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit = False
    immediate: Bit = False


@_method(60, 50, has_content=True)
class BasicReturn(Method):
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@_method(60, 60, has_content=True)
class BasicDeliver(Method):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@_method(60, 70)
class BasicGet(Method):
    ticket: Short
    queue: ShortStr
    no_ack: Bit = False


@_method(60, 71, has_content=True)
class BasicGetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@_method(60, 72)
class BasicGetEmpty(Method):
    cluster_id: ShortStr = ""


@_method(60, 80)
class BasicAck(Method):
    delivery_tag: LongLong
    multiple: Bit = False


@_method(60, 90)
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit = False


@_method(60, 100)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@_method(60, 110)
class BasicRecover(Method):
    requeue: Bit = False


@_method(60, 111)
class BasicRecoverOk(Method):
    pass


@_method(60, 120)
class BasicNack(Method):
    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = False


@_method(85, 10)
class ConfirmSelect(Method):
    no_wait: Bit = False


@_method(85, 11)
class ConfirmSelectOk(Method):
    pass


@_method(90, 10)
class TxSelect(Method):
    pass


@_method(90, 11)
class TxSelectOk(Method):
    pass


@_method(90, 20)
class TxCommit(Method):
    pass


@_method(90, 21)
class TxCommitOk(Method):
    pass


@_method(90, 30)
class TxRollback(Method):
    pass


@_method(90, 31)
class TxRollbackOk(Method):
    pass
