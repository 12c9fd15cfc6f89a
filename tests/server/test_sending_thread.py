"""Large output is sent in a thread: whole, in order, and with nothing else in between."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence

import pytest

from holtmq.broker.containment import InternalErrors
from holtmq.server import sending_thread
from holtmq.server.sending_thread import LARGE_OUTPUT, SendingThread
from holtmq.testing import running_broker
from holtmq.wire import methods as wire
from holtmq.wire.content import Buffer
from holtmq.wire.frames import method_frame
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.places import database_at, journal_on

KIB = 1024
BODY = 60 * KIB
MANY = 300


def bodies(number: int = MANY) -> list[bytes]:
    return [b"%06d" % one + bytes(BODY) for one in range(number)]


def sent(outputs: Sequence[tuple[socket.socket, Sequence[Buffer]]]) -> list[bytes | None]:
    """Send output to each socket. Return what is left of it."""
    rests: list[bytes | None] = []

    async def main() -> None:
        sender, done = SendingThread(InternalErrors(), journal_on(database_at(":memory:"))), asyncio.Event()

        def note(rest: Sequence[Buffer] | None) -> None:
            rests.append(None if rest is None else b"".join(rest))
            if len(rests) == len(outputs):
                done.set()

        for target, pieces in outputs:
            assert sender.add(target.fileno(), pieces, note)
            sender.start()
        await done.wait()
        sender.stop()

    asyncio.run(main())
    return rests


def received(source: socket.socket) -> bytes:
    source.setblocking(False)
    data = bytearray()
    while True:
        try:
            data += source.recv(1024 * KIB)
        except BlockingIOError:
            return bytes(data)


def test_what_a_full_socket_does_not_take_comes_back() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        pieces = [bytes([number % 251]) * (1 + number % 3000) for number in range(4 * sending_thread.MOST_PIECES)]
        whole = b"".join(pieces)
        (rest,) = sent([(ours, pieces)])
        assert rest
        assert received(theirs) + rest == whole


def test_output_for_several_sockets_is_sent_in_the_order_in_which_it_came() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    assert (
        sent([(ours, [b"%d" % number]) for number, (ours, _) in enumerate(pairs)] + [(pairs[0][0], [b" again"])]) == [b""] * 4
    )
    assert [received(theirs) for _, theirs in pairs] == [b"0 again", b"1", b"2"]
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_output_for_a_lost_connection_comes_back() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert sent([(ours, [b"nobody", b" reads this"])]) == [b"nobody reads this"]


def test_without_another_descriptor_the_thread_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "dup", refusing(OSError(errno.EMFILE, "too many open files")))

    async def main() -> None:
        sender = SendingThread(InternalErrors(), journal_on(database_at(":memory:")))
        assert not sender.add(0, [b"piece"], lambda _: None)
        sender.stop()

    asyncio.run(main())


def refusing(error: Exception) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise error

    return refuse


def test_a_defect_leaves_unknown_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", refusing(ValueError("a defect")))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert sent([(ours, [b"piece"]), (ours, [b"another"])]) == [None, None]


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the output that the thread was given."""
    sizes: list[int] = []
    add = SendingThread.add

    def noted(sender: SendingThread, fd: int, pieces: Sequence[Buffer], done: Callable[..., None]) -> bool:
        sizes.append(sum(map(len, pieces)))
        return add(sender, fd, pieces, done)

    monkeypatch.setattr(SendingThread, "add", noted)
    return sizes


def fill(channel: Channel, name: str) -> None:
    channel.declare(name)
    channel.put(name, *bodies())


def test_large_messages_arrive_whole_and_in_order(in_thread: list[int]) -> None:
    consume_everything()
    assert len(in_thread) > 1
    assert min(in_thread) >= LARGE_OUTPUT


def test_what_sockets_do_not_take_in_the_thread_is_sent_by_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, in_thread: list[int]
) -> None:
    monkeypatch.setattr(os, "writev", refusing(BlockingIOError(errno.EAGAIN, "full")))
    consume_everything()
    assert in_thread


def consume_everything() -> None:
    with running_broker() as broker, Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        fill(amqp.channel(), "q")
        channel = other.channel()
        channel.consume("q", no_ack=True)
        assert channel.bodies(MANY) == bodies()


def test_a_client_that_closes_its_connection_gets_what_was_under_way_and_then_the_reply(in_thread: list[int]) -> None:
    with running_broker() as broker, Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        fill(amqp.channel(), "q")
        channel = other.channel()
        channel.send(wire.BasicConsume(0, "q", "", no_ack=True))
        data = bytearray()
        while len(data) < BODY:
            data += other.socket.recv(BODY)
        other.send(0, wire.ConnectionClose(200, "", 0, 0))
        while piece := other.socket.recv(1024 * KIB):
            data += piece
        assert in_thread
        assert data.endswith(method_frame(0, wire.ConnectionCloseOk()))
        whole = [number for number, body in enumerate(bodies()) if body in data]
        assert whole == list(range(MANY - amqp.channel(2).count("q")))


def test_a_defect_in_the_thread_costs_only_the_clients_it_was_sending_to(monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    with running_broker() as broker, Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        fill(amqp.channel(), "q")
        monkeypatch.setattr(os, "writev", refusing(ValueError("a defect")))
        channel = other.channel()
        channel.send(wire.BasicConsume(0, "q", "", no_ack=False))
        with pytest.raises((ClosedError, ConnectionError)):
            channel.bodies(MANY + 1)
        monkeypatch.setattr(os, "writev", writev)
        again = amqp.channel(2)
        again.consume("q", no_ack=True)
        assert sorted(again.bodies(MANY)) == bodies()
