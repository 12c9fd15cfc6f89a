"""A connected client: its socket on one side, the protocol and the broker's session on the other."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from holtmq.accounts import User
from holtmq.broker.authorization import may_connect_from
from holtmq.broker.channel import Channel as BrokerChannel
from holtmq.broker.session import Session
from holtmq.errors import (
    AmqpError,
    CommandInvalidError,
    ConnectionForcedError,
    LoginRefusedError,
    MalformedLoginError,
    NotImplementedByBrokerError,
)
from holtmq.protocol.ports import Publish
from holtmq.protocol.server_channel import ServerChannel
from holtmq.protocol.server_connection import ConnectionState, ServerConnection
from holtmq.server.dispatch import carry_out
from holtmq.table import FieldValue
from holtmq.wire.frames import HEARTBEAT_FRAME
from holtmq.wire.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReject,
    Method,
    TxCommit,
)
from holtmq.wire.tables import decode_table, long_string

if TYPE_CHECKING:
    from holtmq.server.server import Server

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
CLOSE_TIMEOUT_S = 5.0
MISSED_HEARTBEATS = 2
SETTLING = (BasicAck, BasicNack, BasicReject)


class Client(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.broker = server.broker
        self.connection = ServerConnection(self, server.limits)
        self.session: Session | None = None
        self.name = ""
        self.connected_at = 0.0
        self.mechanism = ""
        self.heartbeat_s = 0
        self.bytes_received = self.bytes_sent = self.reads = self.writes = 0
        self.is_publisher = False
        self.needs_batch = 0
        """What was sent last may leave only when this batch of the journal is on disk."""
        self._user: User | None = None
        self._transport: asyncio.Transport
        self._timers: list[asyncio.TimerHandle] = []
        self._has_received = self._has_sent = False
        self._idle_beats = 0
        self._is_reading = True
        self._has_left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.name = f"{_spell(peer)} -> {_spell(here)}"
        self.connected_at = time.time()
        if not self.server.admit(self):
            transport.abort()
            return
        self._later(self.server.config.handshake_timeout_s, self._end_handshake)

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        self.bytes_received += len(data)
        self.reads += 1
        self.server.begin_turn()
        try:
            self.connection.receive(data)
        except Exception:
            # The edge between a client and the broker: whatever defect comes up is this client's loss alone.
            log.exception("internal error while serving %s", self.name)
            self.connection.fail_inside()
        if self.connection.state >= ConnectionState.CLOSING:
            self._leave()
        self.server.received(len(data))

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self.server.begin_turn()
        self.connection.lost()
        if self.session is not None:
            self.session.close()
            self.session = None
        self.server.dismiss(self)

    def pause_writing(self) -> None:
        self.connection.is_congested = True

    def resume_writing(self) -> None:
        self.connection.is_congested = False
        self.resume()

    def resume(self) -> None:
        """The client takes messages again."""
        self.server.begin_turn()
        if self.session is not None:
            for channel in self.session.channels.values():
                channel.resume()

    def flush(self) -> None:
        """Send what there is to send; called when a turn has ended, and nothing has to wait for the disk."""
        if self._transport.is_closing():
            return
        self._has_sent = True
        was_full = not self.connection.is_writable
        self.bytes_sent += self.connection.unsent
        self.writes += 1
        self._transport.writelines(self.connection.take_output())
        if was_full and self.connection.is_writable:
            self.resume()
        if self.connection.state == ConnectionState.CLOSED:
            self._transport.close()

    def has_output(self) -> None:
        self.server.will_flush(self)

    @property
    def only_publishes(self) -> bool:
        channels = self.session.channels.values() if self.session is not None else ()
        return self.is_publisher and not any(channel.consumers or channel.unsettled for channel in channels)

    @property
    def is_held_back(self) -> bool:
        return not self._is_reading

    @property
    def peer(self) -> tuple[str, int]:
        return _address(self._transport.get_extra_info("peername"))

    @property
    def here(self) -> tuple[str, int]:
        return _address(self._transport.get_extra_info("sockname"))

    @property
    def tls(self) -> tuple[str, str] | None:
        """The protocol and the cipher, where the connection is encrypted."""
        cipher = self._transport.get_extra_info("cipher")
        return (cipher[1], cipher[0]) if cipher else None

    def hold_back(self, *, is_held: bool) -> None:
        """Stop or go on reading what the client sends."""
        if is_held == self._is_reading and not self._transport.is_closing():
            self._is_reading = not is_held
            if is_held:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self, error: AmqpError) -> None:
        self.connection.close(error)
        self._leave()

    def _leave(self) -> None:
        """The connection is over, or will be when the client says close-ok."""
        if self.connection.state == ConnectionState.CLOSED and not self.connection.has_output:
            self._transport.close()
        if self._has_left:
            return
        self._has_left = True
        if self.session is not None:
            self.session.close()
            self.session = None
        self._later(CLOSE_TIMEOUT_S, self._transport.abort)
        reason = self.connection.close_reason
        if reason is not None:
            level = logging.INFO if isinstance(reason, ConnectionForcedError) else logging.WARNING  # a wish of ours
            log.log(level, "closing %s: %s %s", self.name, reason.reply_code, reason)

    def _later(self, delay_s: float, call: Any) -> None:
        self._timers = [timer for timer in self._timers if not timer.cancelled()]
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, call))

    def _end_handshake(self) -> None:
        if self.connection.state < ConnectionState.OPEN:
            log.warning("closing %s: no login within %g s", self.name, self.server.config.handshake_timeout_s)
            self._transport.abort()

    def _beat(self, interval_s: float) -> None:
        """Show that we live if nothing else did, and see whether the client does (AMQP 0-9-1 §4.2.7)."""
        if not self._has_sent and not self.connection.has_output:
            self._transport.write(HEARTBEAT_FRAME)
        self._idle_beats = 0 if self._has_received or not self._is_reading else self._idle_beats + 1
        if self._idle_beats > MISSED_HEARTBEATS * 2:
            log.warning("closing %s: missed heartbeats, nothing came for %g s", self.name, interval_s * self._idle_beats)
            self._transport.abort()
            return
        self._has_received = self._has_sent = False
        self._later(interval_s, lambda: self._beat(interval_s))

    @property
    def server_properties(self) -> Mapping[str, FieldValue]:
        return self.server.properties

    @property
    def mechanisms(self) -> str:
        return "PLAIN AMQPLAIN EXTERNAL" if self._certified_name() else "PLAIN AMQPLAIN"

    def log_in(self, mechanism: str, response: bytes, client_properties: Mapping[str, FieldValue]) -> None:
        accounts = self.broker.authorization
        self.mechanism = mechanism
        match mechanism:
            case "PLAIN":
                self._user = accounts.authenticate(*_plain(response))
            case "AMQPLAIN":
                self._user = accounts.authenticate(*_amqplain(response))
            case "EXTERNAL" if (name := self._certified_name()) is not None:
                if name not in accounts.users:
                    raise LoginRefusedError(f"Login was refused: no user {name!r}, as the certificate says")
                self._user = accounts.users[name]
            case _:
                raise CommandInvalidError(f"unknown mechanism {mechanism!r}: expected one of {self.mechanisms}")
        self._refuse_distant_guest()

    def _refuse_distant_guest(self) -> None:
        assert self._user is not None
        peer = self._transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else None
        if not may_connect_from(self._user.name, host, guest_from_anywhere=self.server.config.guest_from_anywhere):
            raise LoginRefusedError("Login was refused: user 'guest' can only connect from this machine")

    def _certified_name(self) -> str | None:
        """The common name in the client's certificate, if it showed one that we trust."""
        certificate = self._transport.get_extra_info("peercert")
        if not certificate or not isinstance(self._transport.get_extra_info("ssl_object"), ssl.SSLObject):
            return None
        names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
        return names[0] if names else None

    def tuned(self, heartbeat_s: int) -> None:
        self.heartbeat_s = heartbeat_s
        if heartbeat_s:
            self._later(heartbeat_s / 2, lambda: self._beat(heartbeat_s / 2))

    def enter(self, vhost: str) -> None:
        assert self._user is not None
        self.session = self.broker.open_session(self._user, vhost)
        log.info("%s: user %r entered vhost %r", self.name, self._user.name, vhost)

    def update_secret(self, secret: bytes) -> None:
        """A new secret for the same user: with passwords there is nothing to renew."""

    def open_channel(self, channel: ServerChannel) -> BrokerChannel:
        assert self.session is not None
        return self.session.open_channel(channel.number, channel)

    def close_channel(self, channel: ServerChannel) -> None:
        if self.session is not None:
            self.session.close_channel(channel.number)

    def publication(self, channel: ServerChannel, method: BasicPublish) -> Publish:
        if method.immediate:
            raise NotImplementedByBrokerError("immediate=true: expected false; no broker of today has it")
        if not self.is_publisher:
            self.is_publisher = True
            self.server.publisher_came(self)
        target = self._target(channel)
        return partial(target.publish, target.publication(method.exchange, method.routing_key, is_mandatory=method.mandatory))

    def _target(self, channel: ServerChannel) -> BrokerChannel:
        assert self.session is not None
        return self.session.channels[channel.number]

    def carry_out(self, channel: ServerChannel, method: Method) -> None:
        target = self._target(channel)
        match method:
            case BasicConsume():
                self._consume(channel, target, method)
                return
            case BasicGet():
                self._get(channel, target, method)
                return
        reply = carry_out(target, method)
        if not isinstance(method, SETTLING) and (method.class_id != 60 or isinstance(method, TxCommit)):
            self._wait_for_disk()
        if reply is not None:
            channel.send(reply)

    def _consume(self, channel: ServerChannel, target: BrokerChannel, method: BasicConsume) -> None:
        tag = target.consume(
            method.queue,
            method.consumer_tag,
            is_auto_ack=method.no_ack,
            is_exclusive=method.exclusive,
            arguments=method.arguments,
        )
        if not method.no_wait:
            channel.send(BasicConsumeOk(tag))  # before any message: those leave when the turn ends

    def _get(self, channel: ServerChannel, target: BrokerChannel, method: BasicGet) -> None:
        fetched = target.get(method.queue, is_auto_ack=method.no_ack)
        if fetched is None:
            channel.send(BasicGetEmpty())
            return
        message = fetched.message
        reply = BasicGetOk(
            fetched.tag, fetched.is_redelivered, message.origin.exchange, message.origin.routing_key, fetched.remaining
        )
        channel.send_content(reply, message.content)

    def _wait_for_disk(self) -> None:
        """What changed durably is told to the client only when it is on disk."""
        journal = self.broker.journal
        if journal.has_changes:
            self.needs_batch = journal.batch


def _plain(response: bytes) -> tuple[str, str]:
    """RFC 4616: an identity that nobody uses, the name, the password, with zero bytes between them."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise MalformedLoginError(f"expected a PLAIN response of 3 parts, got {len(parts)}")
    return _text(parts[1]), _text(parts[2])


def _amqplain(response: bytes) -> tuple[str, str]:
    """A table without its length, with LOGIN and PASSWORD in it."""
    fields, _ = decode_table(long_string(response))
    name, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str):
        raise MalformedLoginError("expected an AMQPLAIN response with LOGIN and PASSWORD as strings")
    return name, password


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MalformedLoginError("expected a name and a password in UTF-8") from error


def _address(address: object) -> tuple[str, int]:
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else (str(address or "local"), 0)


def _spell(address: object) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "local")
