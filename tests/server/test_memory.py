"""The memory budget: whatever clients make the broker hold is counted, limited, and given back.

Each test runs a broker process with a small limit, lets clients hold as much as they can in one particular way, and watches
the resident memory of the process.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from holtmq.config import Config
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content, on_channel
from holtmq.wire.frames import method_frame
from holtmq.wire.methods import Method
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import PATIENCE_S, eventually
from tests.server.process import BrokerProcess, broker_process
from tests.server.test_back_pressure import resident_bytes

MIB = 1024 * 1024
LIMIT = 64 * MIB
SLACK = 200 * MIB
"""What the process may take beyond its limit, according to the documentation."""


class Victim:
    """A broker process with a small memory limit."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.port = broker.port
        self.pid = broker.process.pid
        self.broker = broker
        self._files = ExitStack()

    def connect(self) -> Amqp:
        return self._files.enter_context(Amqp(self.port))

    def resident(self) -> int:
        return resident_bytes(self.pid)

    def most_resident(self) -> int:
        """Return the largest resident memory of the process so far, or since `forget_most_resident`."""
        (line,) = [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024

    def forget_most_resident(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def stays_within_its_limit(self) -> None:
        most = self.most_resident()
        assert most < LIMIT + SLACK, f"{most // MIB} MiB with a limit of {LIMIT // MIB} MiB"

    def serves_others(self) -> None:
        """Expect that another client can use a queue of its own. It waits while it is blocked, or refused for a moment."""
        assert eventually(self._serve_another, "a message to another client") == b"fine"

    def _serve_another(self) -> bytes | None:
        with suppress(ConnectionError, ClosedError), Amqp(self.port) as amqp:
            channel = amqp.channel()
            channel.declare("bystander", auto_delete=True)
            channel.consume("bystander", "bystander", no_ack=True)
            channel.publish("", "bystander", b"fine")
            return channel.next().body
        return None

    def close(self) -> None:
        self._files.close()


@contextmanager
def small_broker(folder: Path, limit: int = LIMIT, *settings: str) -> Iterator[Victim]:
    config = folder / "holtmq.toml"
    lines = (f"memory_bytes = {limit}", 'durability = "off"', 'log_level = "error"', *settings)
    config.write_text("\n".join(lines))
    with broker_process(folder / "b.db", "--config", str(config), "--http-port", "0") as broker:
        victim = Victim(broker)
        try:
            yield victim
        finally:
            with suppress(OSError, ClosedError):
                victim.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with small_broker(tmp_path) as victim:
        yield victim


def send_until_stuck(amqp: Amqp, data: bytes, times: int) -> int:
    """Send without reading, until the broker has read nothing for a while. Return how often the data was sent."""
    amqp.socket.settimeout(1.0)
    for sent in range(times):
        try:
            left = memoryview(data)
            while left:  # not `sendall`, whose timeout is for all of the data
                left = left[amqp.socket.send(left[:MIB]) :]
        except OSError:
            return sent
    return times


def test_a_client_that_gets_large_messages_and_does_not_read(victim: Victim) -> None:
    channel = victim.connect().channel()
    channel.declare("q")
    channel.put("q", bytes(8 * MIB))
    deaf = victim.connect()
    deaf.channel()
    get, requeue = wire.BasicGet(0, "q", no_ack=False), wire.BasicNack(0, multiple=True, requeue=True)
    send_until_stuck(deaf, (method_frame(1, get) + method_frame(1, requeue)) * 150, 1)
    victim.serves_others()
    victim.stays_within_its_limit()


def test_a_client_that_does_not_read_returned_messages(victim: Victim) -> None:
    deaf = victim.connect()
    deaf.channel()
    method = method_frame(1, wire.BasicPublish(0, "amq.direct", "nowhere", mandatory=True))
    message = method + on_channel(make_content(encode_properties({}), bytes(MIB)), 1, deaf.frame_max)
    assert send_until_stuck(deaf, message, 300) < 300
    victim.serves_others()
    victim.stays_within_its_limit()


def reply(victim: Victim, number: int) -> Channel:
    """Send replies of 1 MiB to a client that does not read, and return its channel."""
    asking, server = victim.connect().channel(), victim.connect().channel()
    server.declare("requests")
    asking.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    asking.publish("", "requests", b"?", reply_to="amq.rabbitmq.reply-to")
    request = eventually(lambda: server.get("requests"), "the request")
    assert request is not None
    for _ in range(number):
        server.publish("", request.properties["reply_to"], bytes(MIB))
    server.settle()
    return asking


def test_a_client_that_does_not_read_its_replies(victim: Victim) -> None:
    reply(victim, 350)
    victim.serves_others()
    victim.stays_within_its_limit()


def test_a_client_that_leaves_too_much_unread_is_disconnected(tmp_path: Path) -> None:
    """Even if there is enough memory. Replies come from others, so that not reading from the client does not stop them."""
    with small_broker(tmp_path, 1024 * MIB, f"max_message_bytes = {MIB}") as victim:
        asking = reply(victim, 100)
        replies = iter(lambda: asking.next(PATIENCE_S), None)
        with pytest.raises(OSError):  # noqa: PT011  # reset or closed
            list(replies)


def test_a_client_that_reads_a_large_message_slowly_stays_connected(tmp_path: Path) -> None:
    with small_broker(tmp_path, 1024 * MIB, f"max_message_bytes = {128 * MIB}") as victim:
        channel, slow = victim.connect().channel(), victim.connect()
        channel.declare("q")
        reader = slow.channel()
        reader.consume("q", "c", no_ack=True)
        channel.publish("", "q", bytes(100 * MIB))
        slow.socket.recv(MIB)
        channel.call(wire.QueueDelete(0, "q"), wire.QueueDeleteOk)  # there is something else to tell it
        received = MIB
        while received < 100 * MIB:
            received += len(slow.socket.recv(MIB)) or pytest.fail(f"closed after {received} bytes")


def test_a_consumer_without_prefetch_on_a_backlog_of_large_messages(victim: Victim) -> None:
    channel = victim.connect().channel()
    channel.declare("q", durable=True)
    for _ in range(300):
        channel.publish("", "q", bytes(MIB), delivery_mode=2)
    channel.settle()
    victim.stays_within_its_limit()
    victim.forget_most_resident()
    before = victim.resident()
    consumer = victim.connect().channel()
    consumer.consume("q", "c")
    for _ in range(300):
        consumer.next()
    assert victim.most_resident() - before < 64 * MIB
    victim.stays_within_its_limit()


def test_a_transaction_that_is_never_committed(victim: Victim) -> None:
    greedy = [victim.connect() for _ in range(4)]
    for amqp in greedy:
        channel = amqp.channel()
        channel.declare("q")
        channel.call(wire.TxSelect(), wire.TxSelectOk)
    for amqp in greedy:
        message = method_frame(1, wire.BasicPublish(0, "", "q"))
        message += on_channel(make_content(encode_properties({}), bytes(MIB)), 1, amqp.frame_max)
        send_until_stuck(amqp, message, 100)
    victim.serves_others()
    victim.stays_within_its_limit()


def test_messages_that_are_never_finished(victim: Victim) -> None:
    greedy = [victim.connect() for _ in range(8)]
    for amqp in greedy:
        amqp.channel().declare("q")
    for amqp in greedy:
        content = on_channel(make_content(encode_properties({}), bytes(50 * MIB)), 1, amqp.frame_max)
        send_until_stuck(amqp, method_frame(1, wire.BasicPublish(0, "", "q")) + content[:-MIB], 1)
    victim.serves_others()
    victim.stays_within_its_limit()


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_messages_of_the_largest_size_with_the_default_limits(tmp_path: Path, mode: int) -> None:
    config = Config(data="")
    with small_broker(tmp_path, config.memory_bytes) as victim:
        setup = victim.connect().channel()
        setup.declare("q", durable=True)
        content = make_content(encode_properties({"delivery_mode": mode}), bytes(config.max_message_bytes))

        def publish(amqp: Amqp) -> None:
            message = method_frame(1, wire.BasicPublish(0, "", "q")) + on_channel(content, 1, amqp.frame_max)
            send_until_stuck(amqp, message, 2)

        publishers = [victim.connect() for _ in range(8)]
        for amqp in publishers:
            amqp.channel()
        threads = [threading.Thread(target=publish, args=(amqp,)) for amqp in publishers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert eventually(lambda: setup.get("q"), "a message") is not None
        most = victim.most_resident()
        assert most < config.memory_bytes + SLACK, f"{most // MIB} MiB"


def test_unacknowledged_messages_of_basic_get(victim: Victim) -> None:
    channel = victim.connect().channel()
    channel.declare("q")
    for _ in range(350):
        channel.publish("", "q", bytes(MIB))
    channel.settle()
    reader = victim.connect().channel()
    for _ in range(350):
        assert reader.get("q", no_ack=False) is not None
    victim.serves_others()
    victim.stays_within_its_limit()


def test_headers_that_are_larger_than_the_body(victim: Victim) -> None:
    channel = victim.connect().channel()
    for number in range(10):
        channel.declare(f"q{number}")
    headers = {f"{one}": "v" * 100 for one in range(400)}
    for number in range(4000):
        channel.publish("", f"q{number % 10}", b"", headers=headers, message_id=f"{number}")
    channel.settle()
    victim.stays_within_its_limit()


def test_routing_keys_that_differ_in_every_message(victim: Victim) -> None:
    channel = victim.connect().channel()
    for number in range(200):
        channel.declare(f"q{number}", auto_delete=True)
        channel.bind(f"q{number}", "amq.topic", "#")
    for number in range(1000):
        channel.publish("amq.topic", f"{number}." + "k" * 200, b"")
    channel.settle()
    victim.stays_within_its_limit()


def declare_without_end(channel: Channel) -> None:
    for number in range(20_000):
        channel.send(wire.QueueDeclare(0, f"q{number}", no_wait=True, arguments={"x-note": "n" * 100}))
        if number % 1000 == 0:
            channel.settle()


def test_messages_in_responses_of_the_http_api_that_nobody_reads(victim: Victim) -> None:
    channel = victim.connect().channel()
    for number in range(8):
        channel.declare(f"q{number}", durable=True)
        for _ in range(20):
            channel.publish("", f"q{number}", random.randbytes(MIB), delivery_mode=2)
    channel.settle()
    with ExitStack() as files:
        for number in range(8):
            deaf = files.enter_context(socket.create_connection(("127.0.0.1", victim.broker.http_port)))
            body = json.dumps({"count": 20, "ackmode": "ack_requeue_true", "encoding": "auto"})
            head = f"POST /api/queues/%2F/q{number}/get HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            deaf.sendall(f"{head}Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n{body}".encode())
            deaf.settimeout(PATIENCE_S)
            assert deaf.recv(20).startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))
        victim.stays_within_its_limit()
        assert eventually(
            lambda: channel.call(wire.QueueDeclare(0, "q0", passive=True), wire.QueueDeclareOk).message_count == 20, ""
        )
    victim.serves_others()


def test_declarations_without_end(victim: Victim) -> None:
    with pytest.raises(ClosedError, match="506 RESOURCE_ERROR - exchanges, queues and bindings take"):
        declare_without_end(victim.connect().channel())
    victim.stays_within_its_limit()
    with Amqp(victim.port) as amqp:  # what is there can still be used
        channel = amqp.channel()
        channel.publish("", "q1", b"m")
        assert channel.drain("q1") == [b"m"]


def test_publishers_are_told_and_go_on_when_memory_is_free_again(victim: Victim) -> None:
    told = victim.connect()
    publisher = told.channel()
    publisher.declare("p")
    publisher.publish("", "p", b"m")  # only publishers are told
    holder = victim.connect().channel()
    holder.call(wire.TxSelect(), wire.TxSelectOk)
    for _ in range(70):
        holder.publish("", "p", bytes(MIB))
    assert isinstance(told.next_event(0, PATIENCE_S).method, wire.ConnectionBlocked)
    publisher.publish("", "p", b"n")
    holder.call(wire.TxRollback(), wire.TxRollbackOk)
    assert isinstance(told.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
    publisher.consume("p", "c", no_ack=True)
    assert [publisher.next().body, publisher.next().body] == [b"m", b"n"]


def test_consumers_with_large_arguments(victim: Victim) -> None:
    greedy = victim.connect().channel()
    greedy.declare("q", auto_delete=True)
    method = wire.BasicConsume(0, "q", "", no_wait=True, arguments={"x-note": "n" * 100_000})
    send_until_stuck(greedy.amqp, method_frame(1, method), 4000)
    victim.serves_others()
    victim.stays_within_its_limit()


def test_readers_of_a_stream_of_large_messages_that_do_not_read(victim: Victim) -> None:
    channel = victim.connect().channel()
    channel.declare("s", durable=True, queue_type="stream")
    for _ in range(200):
        channel.publish("", "s", bytes(MIB))
    channel.settle()
    for _ in range(10):
        deaf = victim.connect().channel()
        deaf.call(wire.BasicQos(0, 1000), wire.BasicQosOk)
        deaf.send(wire.BasicConsume(0, "s", "c", arguments={"x-stream-offset": "first"}))
    victim.serves_others()
    victim.stays_within_its_limit()


def test_freed_memory_is_given_back_to_the_system(tmp_path: Path) -> None:
    with small_broker(tmp_path, 512 * MIB) as victim:
        before = victim.resident()
        channel = victim.connect().channel()
        for number in range(12):
            channel.declare(f"q{number}")
            for _ in range(150):
                channel.publish("", f"q{number}", bytes(100_000))
        channel.settle()
        assert victim.resident() - before > 100 * MIB
        for number in range(12):
            channel.call(wire.QueuePurge(0, f"q{number}"), wire.QueuePurgeOk)
        eventually(lambda: victim.resident() - before < 60 * MIB, "the memory to be given back")


class Greedy:
    """A client that does at random what makes a broker hold memory, and seldom reads."""

    def __init__(self, victim: Victim, chance: random.Random) -> None:
        self._amqp = victim.connect()
        self._amqp.channel()
        self._amqp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._amqp.socket.settimeout(0.05)
        self._chance = chance
        self._actions = (
            self.publish, self.publish_unroutable, self.leave_unfinished, self.get, self.consume, self.begin, self.commit,
            self.requeue, self.acknowledge, self.open_channels, self.read, self.bind, self.publish_to_many, self.reject,
        )  # fmt: skip

    def act(self) -> None:
        with suppress(TimeoutError):
            self._chance.choice(self._actions)()

    def drop(self) -> None:
        self._amqp.drop()

    def _message(self, exchange: str, key: str) -> bytes:
        body = bytes(self._chance.choice((0, 100, 10_000, 1_000_000, 8_000_000)))
        method = method_frame(1, wire.BasicPublish(0, exchange, key, mandatory=True))
        return method + on_channel(make_content(encode_properties({}), body), 1, self._amqp.frame_max)

    def _queue(self) -> str:
        return f"q{self._chance.randrange(5)}"

    def _send(self, *methods: Method) -> None:
        self._amqp.socket.sendall(b"".join(method_frame(1, method) for method in methods))

    def publish(self) -> None:
        self._amqp.socket.sendall(self._message("", self._queue()) * self._chance.randrange(10))

    def publish_unroutable(self) -> None:
        self._amqp.socket.sendall(self._message("amq.direct", "nowhere") * self._chance.randrange(10))

    def leave_unfinished(self) -> None:
        self._amqp.socket.sendall(self._message("", self._queue())[:-1])

    def get(self) -> None:
        self._send(*[wire.BasicGet(0, self._queue())] * self._chance.randrange(100))

    def consume(self) -> None:
        note = "n" * self._chance.choice((0, 10, 100_000))
        self._send(wire.BasicConsume(0, self._queue(), "", no_ack=self._chance.random() < 0.5, arguments={"note": note}))

    def bind(self) -> None:
        note = "n" * self._chance.choice((0, 10, 10_000))
        self._send(
            wire.QueueBind(0, self._queue(), "amq.fanout", f"{self._chance.random()}", no_wait=True, arguments={"n": note})
        )

    def publish_to_many(self) -> None:
        self._amqp.socket.sendall(self._message("amq.fanout", "k") * self._chance.randrange(10))

    def reject(self) -> None:
        self._send(wire.BasicNack(0, multiple=True, requeue=False))

    def begin(self) -> None:
        self._send(wire.TxSelect())

    def commit(self) -> None:
        self._send(wire.TxCommit())

    def requeue(self) -> None:
        self._send(wire.BasicNack(0, multiple=True, requeue=True))

    def acknowledge(self) -> None:
        self._send(wire.BasicAck(0, multiple=True))

    def open_channels(self) -> None:
        numbers = range(2, self._chance.randrange(3, 500))
        self._amqp.socket.sendall(b"".join(method_frame(number, wire.ChannelOpen()) for number in numbers))

    def read(self) -> None:
        self._amqp.socket.recv(self._chance.randrange(1, 1_000_000))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_greedy_clients_do(victim: Victim, seed: int) -> None:
    chance = random.Random(seed)
    setup = victim.connect().channel()
    for number in range(5):
        durable, target = number % 2 == 0, f"q{(number + 1) % 5}"
        setup.declare(f"q{number}", durable=durable, dead_letter_exchange="", dead_letter_routing_key=target)
    clients: list[Greedy] = []
    for _ in range(400):
        if len(clients) < 20 and chance.random() < 0.2:
            with suppress(OSError, ClosedError):
                clients.append(Greedy(victim, chance))
        if clients:
            client = chance.choice(clients)
            try:
                client.act()
            except (OSError, ClosedError):
                clients.remove(client)
    victim.stays_within_its_limit()
    for client in clients:
        client.drop()
    victim.serves_others()
