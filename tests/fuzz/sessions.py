"""Fuzz target: clients that send any methods to a broker without sockets, and disconnect at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holtmq.accounts import Permission, User
from holtmq.broker.broker import Broker
from holtmq.broker.channel import Channel
from holtmq.broker.memory import memory_of
from holtmq.broker.publication import Publication
from holtmq.broker.session import Session
from holtmq.protocol.server_channel import ServerChannel
from holtmq.protocol.server_connection import ConnectionState, ServerConnection
from holtmq.server.dispatch import CALLS, carry_out, get_message
from holtmq.steps import complete
from holtmq.store.null_journal import NullJournal
from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content, on_channel
from holtmq.wire.frames import method_frame
from holtmq.wire.methods import Method, decode_method
from tests.fuzz.choices import Choices
from tests.fuzz.connections import LIMITS, OPENING
from tests.protocol.test_connection import Recorder, cut

START_MS = 1_700_000_000_000
KINDS: Sequence[type[Method]] = (wire.BasicPublish, wire.BasicGet, wire.ChannelOpen, wire.ChannelClose, *CALLS)
NAMES = ("q", "", "r", "x", "amq.topic", "amq.match", "amq.fanout", "no-such", "amq.rabbitmq.reply-to", "#", "a.b")
TYPES = ("direct", "topic", "headers", "fanout", "x-unknown")
ARGUMENTS: Sequence[Mapping[str, FieldValue]] = (
    {},
    {"x-max-length": 1},
    {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "r"},
    {"x-dead-letter-exchange": "amq.fanout"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 5},
    {"x-max-length": 1, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 20, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "x"},
    {"x-expires": 3},
    {"x-max-priority": 3},
    {"x-single-active-consumer": True},
    {"x-queue-type": "quorum", "x-delivery-limit": 1},
    {"x-match": "any", "a": 1, "b": None},
    {"x-match": "all-with-x", "x-a": "b"},
    {"x-priority": -5},
    {"x-message-ttl": -1},
    {"alternate-exchange": "amq.fanout"},
    {"a": [1, None, {"b": b"\xff"}]},
)
DEATH = {"queue": "q", "reason": "expired", "count": 1, "exchange": "", "routing-keys": ["q"]}
READABLE: Sequence[Mapping[str, Any]] = (
    {},
    {"delivery_mode": 2, "priority": 2},
    {"expiration": "1"},
    {"expiration": "soon"},
    {"headers": {"a": 1, "x-delay": 4}},
    {"headers": {"CC": ["r", "q"], "BCC": ["x"]}},
    {"headers": {"CC": "r"}},
    {"headers": {"CC": [1, None, {}]}},
    {"reply_to": "amq.rabbitmq.reply-to"},
    {"reply_to": "amq.rabbitmq.reply-to.g1.x"},
    {"user_id": "guest"},
    {"user_id": "other"},
    {"headers": {"x-death": [DEATH]}},
    {"headers": {"x-death": "q"}},
    {"headers": {"x-death": [DEATH, 1, {"count": "many"}, {"queue": 5}]}},
    {"headers": {"x-death": [{**DEATH, "count": 2**63 - 1}]}},
    {"headers": {"x-delivery-count": "none"}},
    {"headers": {"x-first-death-queue": 1, "x-last-death-reason": []}},
)
UNREADABLE = (
    b"",
    b"\xff\xff",
    b"\x20\x00\x00\x00\x00\x05\x01aZZZ",
    b"\x20\x00\x00\x00\x00\x0a\x07x-deathZZ",
)
PROPERTIES: Sequence[bytes] = (*map(encode_properties, READABLE), *UNREADABLE)


class BenchHandler(Recorder):
    """Carries out the requests of one client on a broker, as the server's handler does."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.session: Session | None = None
        self._broker = broker

    def enter(self, vhost: str) -> None:
        self.session = self._broker.open_session(self._broker.authorization.user("guest"), vhost)

    def open_channel(self, channel: ServerChannel) -> Channel:  # type: ignore[override]  # it takes acks as well
        return self._session.open_channel(channel.number, channel)

    def close_channel(self, channel: ServerChannel) -> None:
        self._session.close_channel(channel.number)

    def publication(self, channel: ServerChannel, method: wire.BasicPublish) -> Publication:
        target = self._session.channels[channel.number]
        return target.publication(method.exchange, method.routing_key, is_mandatory=method.mandatory)

    def carry_out(self, channel: ServerChannel, method: Method) -> None:
        target = self._session.channels[channel.number]
        if isinstance(method, wire.BasicGet):
            got = get_message(target, method)
            assert got is not None, "a store in memory is read at once"
            reply, content = got
            if content is None:
                channel.send(reply)
            else:
                channel.send_content(reply, content)
            return
        answer = carry_out(target, method)
        if answer is not None:
            channel.send(answer)

    @property
    def _session(self) -> Session:
        assert self.session is not None
        return self.session


class BenchClient:
    """A connection to the broker, which has logged in and opened two channels."""

    def __init__(self, broker: Broker) -> None:
        self.handler = BenchHandler(broker)
        self.connection = ServerConnection(self.handler, LIMITS)
        self.connection.receive(OPENING + method_frame(1, wire.ChannelOpen()) + method_frame(2, wire.ChannelOpen()))

    def read(self) -> None:
        """Take the output and check that it consists of methods and content that a client can decode."""
        for piece in cut(b"".join(self.connection.take_output())):
            if piece[0] == 1:
                decode_method(piece[7:-1])

    def disconnect(self) -> None:
        self.connection.lost()
        if self.handler.session is not None:
            complete(self.handler.session.close())


def session(data: bytes) -> None:
    """Carry out any methods of two clients in any turns, then disconnect both. A third client must not notice."""
    broker = Broker(NullJournal())
    broker.begin(START_MS)
    broker.add_vhost("/")
    broker.set_user(User("guest"))
    broker.set_permission(Permission("guest", "/"))
    witness, clients = BenchClient(broker), [BenchClient(broker), BenchClient(broker)]
    choices, now_ms = Choices(data), START_MS
    while not choices.is_over:
        client = choices.pick(clients)
        wait_ms = choices.pick((None, None, None, None, 0, 1, 5, 100))
        if client.connection.state == ConnectionState.OPEN:
            client.connection.receive_buffer(memoryview(_step(choices)))
        if wait_ms is not None:
            now_ms += wait_ms
            broker.end()
            broker.begin(now_ms)
            for each in clients:
                each.read()
    for client in clients:
        client.disconnect()
    broker.end()
    broker.begin(now_ms + 1000)
    broker.end()
    _check_rest(broker)
    _check_witness(witness)


def _step(choices: Choices) -> bytes:
    kind, number = choices.pick(KINDS), 1 + choices.number(2)
    arguments = [_argument(choices, name, type_) for name, type_ in kind.layout]
    sent = method_frame(number, kind(*arguments))
    if kind is wire.BasicPublish and (shape := choices.number(16)) != 15:
        body = bytes(choices.pick((1, 0, 30, 5000)))
        frames = on_channel(make_content(choices.pick(PROPERTIES), body), number, 4096)
        sent += frames[: len(frames) // 2] if shape == 14 else frames
    return sent


def _argument(choices: Choices, name: str, type_: object) -> Any:
    match type_:
        case "bit":
            return choices.number(4) == 3
        case "shortstr":
            return choices.pick(TYPES if name == "type" else NAMES)
        case "longstr":
            return b""
        case "table":
            return choices.pick(ARGUMENTS)
        case _:
            return choices.number(6) if name != "prefetch_size" else 0


def _check_rest(broker: Broker) -> None:
    """Check that no error was contained, that nothing of the clients is left, and that all memory is accounted for."""
    assert not broker.internal_errors.counts
    vhost = broker.vhosts["/"]
    registry = vhost.router.registry
    assert broker.memory.topology == memory_of(registry.exchanges.values(), registry.queues.values(), registry.bindings())
    for queue in list(vhost.queues.values()):
        assert not queue.consumers, queue.name
        assert queue.owner is None, queue.name
        assert queue.message_count >= 0, queue.name
        vhost.delete_queue(queue)
    broker.end()
    assert not broker.awake
    assert broker.memory.queues == 0


def _check_witness(witness: BenchClient) -> None:
    witness.read()
    raw = encode_properties({})
    channel = witness.handler.session.channels[1] if witness.handler.session else None
    assert channel is not None
    channel.declarer.declare_queue("witness", is_durable=False, is_exclusive=True, is_auto_delete=False, arguments={})
    channel.publication("", "witness", is_mandatory=False).publish(raw, [make_content(raw, b"unharmed")])
    fetched = channel.get("witness", is_auto_ack=True)
    assert fetched is not None
    assert fetched.message.body == b"unharmed"
