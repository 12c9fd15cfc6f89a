"""A running broker: listens for clients, and puts together turns, commits and back-pressure.

Work is done in turns on the event loop. At the end of a turn the output of clients is sent, and a thread commits what the
journal has collected, unless it is still busy with the batch before.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import ssl
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from holtmq.broker.broker import Broker
from holtmq.clock import SteadyClock
from holtmq.compatibility import RABBITMQ_PRODUCT, RABBITMQ_VERSION
from holtmq.config import DEFAULT_HTTP_PORT, Config
from holtmq.errors import ConnectionForcedError, StoreError, StoreFencedError
from holtmq.listener import Listener, url_of
from holtmq.protocol.server_connection import Limits
from holtmq.server.back_pressure import BackPressure
from holtmq.server.between_turns import ChoresBetweenTurns
from holtmq.server.client import LARGE_INPUT_BYTES, Client
from holtmq.server.commits import Commits
from holtmq.server.descriptors import DescriptorShares
from holtmq.server.disk_space import DiskSpace
from holtmq.server.housekeeping import Housekeeping
from holtmq.server.passwords import Passwords
from holtmq.server.pause import Pause
from holtmq.server.pulse import Pulse
from holtmq.server.reading_thread import ReadsInThread
from holtmq.server.sending_thread import SendingThread
from holtmq.server.startup import open_broker
from holtmq.server.turns import Turns
from holtmq.server.upkeep import Upkeep
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.table import FieldValue

if TYPE_CHECKING:
    from holtmq.management.http import HttpServer

log = logging.getLogger(__name__)

STOP_S = 5.0
"""Longest time that a stopping server waits for its clients to disconnect."""
CAPABILITIES = (
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
    "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
)  # fmt: skip


class Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Server:
    """A broker with its listeners and clients. `broker` and the parts around it exist once `start` has opened the file."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = Limits(config.max_channels, config.max_frame_bytes, config.max_message_bytes, config.heartbeat_s)
        self.instance = uuid4().hex
        self.properties: Mapping[str, FieldValue] = {
            "product": RABBITMQ_PRODUCT,
            "version": RABBITMQ_VERSION,
            "platform": f"HoltMQ {version('holtmq')}, Python {platform.python_version()}",
            "information": "HoltMQ, an AMQP broker on one file, compatible with RabbitMQ",
            "capabilities": dict.fromkeys(CAPABILITIES, True),
        }
        self.disk_space = DiskSpace(config.data, config.data_folder, config.disk_free_bytes)
        self.clients: set[Client] = set()
        self.input_buffer = memoryview(bytearray(LARGE_INPUT_BYTES))
        """What the sockets of all clients are read into, one after the other. Nothing stays in it between two events."""
        self.clock = SteadyClock()
        self.started_at = self.clock.now_ms() / 1000
        self.lost = asyncio.Event()
        """Set when the broker has lost its database to another one."""
        self._loss: StoreFencedError | None = None
        self.broker: Broker
        self.passwords: Passwords
        self.sender: SendingThread
        self.turns: Turns
        self.pressure: BackPressure
        self._commits: Commits
        self._upkeep: Upkeep
        self._pulse: Pulse | None = None
        self._housekeeping: Housekeeping
        self._journal: BatchJournal
        self._shares = DescriptorShares.of(config)
        self._newcomers: dict[Client, None] = {}
        """Clients that have not logged in, oldest first, and some that have since."""
        self._listeners: list[Listener] = []
        self._http: HttpServer | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Bind the ports, open the file, and accept clients."""
        try:
            await self._start()
        except BaseException:
            for listener in self._listeners:
                listener.close()
            raise

    async def _start(self) -> None:
        config = self.config
        self._listen("AMQP", config.amqp_port, None)
        if config.tls_port is not None:
            self._listen("AMQP over TLS", config.tls_port, tls_context(config))
        self.broker, self._journal = open_broker(config, self.address, self.clock.now_ms())
        self.passwords = Passwords(self.broker.authorization.users, config.handshake_timeout_s)
        self.sender = SendingThread(self.broker.internal_errors, self._journal)
        self.turns = Turns(self.broker, self.clock, self._after_turn)
        self.broker.chores = ChoresBetweenTurns(self.broker.internal_errors, self.turns.begin)
        self._reads: ReadsInThread | None = None
        if self._journal.reads_beside:
            self.broker.reads = self._reads = ReadsInThread(self._journal, self.broker.internal_errors, self.turns)
        self.pressure = BackPressure(self.broker, self._journal, self.clients)
        self._commits = Commits(self.broker, self._journal, self.turns, self.pressure, self.disk_space, self._lose)
        self._housekeeping = Housekeeping(self.broker, self.turns, self.pressure, self.clients)
        self._commits.start()
        shares = self._shares
        if shares.amqp < config.max_connections:
            log.info("at most %d AMQP connections: the limit for open files is %d (ulimit -n)", shares.amqp, shares.limit)
        self._upkeep = Upkeep(self._journal, self._commits, self.pressure)
        if self._journal.is_remote:
            self._pulse = Pulse(self._journal, self._commits, gives_up=config.standby, on_loss=self._commits.failed)
        if config.http_port >= 0 or config.https_port >= 0:
            await self._start_http()
        for listener in self._listeners:
            listener.start()

    async def stop(self) -> None:
        """Disconnect all clients, commit all changes, and close the file.

        A broker that has lost its database commits nothing, and raises the error that says so.
        """
        self._is_stopping = True
        if self._http is not None:
            await self._http.stop()
        for listener in self._listeners:
            listener.close()
        self.turns.begin()
        for client in list(self.clients):
            client.close(ConnectionForcedError("broker forced connection closure with reason 'shutdown'"))
            client.resume_reading(Pause.BLOCKED)  # so that it can answer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S
        while (self.clients or self.turns.is_open or self.broker.chores.has_work) and loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._housekeeping.stop()
        self._upkeep.stop()
        self.broker.chores.complete()
        self.broker.forget_delivered()  # all sessions are closed: what was unacknowledged is back in its queue
        self.passwords.close()
        self.sender.stop()
        if self._reads is not None:
            self._reads.stop()
        try:
            await self._commits.finish()
        except StoreError:
            if self._loss is None:
                raise
        finally:
            if self._pulse is not None:
                self._pulse.stop()  # not before: it bounds all waits for the database
            self._journal.close()
        if self._loss is not None:
            raise self._loss

    def _lose(self, error: StoreFencedError) -> None:
        """Note that another broker has the database. Nothing may be confirmed or delivered any more."""
        if self._loss is None:
            log.error("%s", error)
            self._loss = error
            self.turns.begin()
            for client in list(self.clients):
                client.disown(ConnectionForcedError("broker forced connection closure with reason 'lost its database'"))
            self.lost.set()

    def begin_turn(self) -> None:
        """Begin a turn. Changes to the broker are made in a turn only."""
        self.turns.begin()

    async def written(self) -> None:
        """Wait until all changes made so far are on disk."""
        await self._commits.written()

    def vacuum(self) -> asyncio.Future[None]:
        """Begin to give all unused space of the data file back, in small steps."""
        return self._upkeep.vacuum()

    @property
    def data_bytes(self) -> int:
        """Size of the data file with its WAL, in bytes."""
        return self.disk_space.used

    @property
    def blocked_for(self) -> str | None:
        """What publishers are blocked for, or None if they are not."""
        return self.pressure.blocked_for

    @property
    def blocked_reason(self) -> str:
        """Why publishers are blocked, in a few words."""
        return self.pressure.reason

    @property
    def disk_free_limit(self) -> int:
        """Free disk space below which publishers are blocked, in bytes."""
        return self.disk_space.limit

    @property
    def address(self) -> str:
        """URL of the first AMQP listener."""
        return url_of("amqp", self._listeners[0].addresses[0])

    @property
    def addresses(self) -> list[str]:
        """URLs of all listeners."""
        named = zip(("amqp", "amqps"), self._listeners, strict=False)
        amqp = [url_of(scheme, address) for scheme, listener in named for address in listener.addresses]
        return amqp + (self._http.addresses if self._http is not None else [])

    @property
    def http_address(self) -> str | None:
        """URL of the HTTP API and the web UI, or None if they are disabled."""
        return self._http.addresses[0] if self._http is not None else None

    def admit(self, client: Client) -> bool:
        """Register a client. Return False if no further client is allowed."""
        if self._is_stopping:
            log.warning("refusing %s: the broker is stopping", client.name)
            return False
        if self.broker.memory.is_exhausted:
            log.warning("refusing %s: memory is exhausted", client.name)
            return False
        if len(self.clients) >= self._shares.amqp:
            oldest = self._oldest_newcomer()
            if oldest is None:
                log.warning("refusing %s: %d clients are connected, which is the maximum", client.name, len(self.clients))
                return False
            del self._newcomers[oldest]
            oldest.abort()
        self.clients.add(client)
        self._newcomers[client] = None
        self.broker.churn.connections_opened += 1
        return True

    def dismiss(self, client: Client) -> None:
        """Remove a client that is disconnected."""
        self.clients.remove(client)
        self._newcomers.pop(client, None)
        churn = self.broker.churn
        churn.connections_closed += 1
        churn.bytes_received += client.bytes_received
        churn.bytes_sent += client.bytes_sent
        self.turns.forget(client)
        self._commits.forget(client)
        self.pressure.forget(client)

    def _listen(self, service: str, port: int, context: ssl.SSLContext | None) -> None:
        self._listeners.append(
            Listener(
                service,
                self.config.host,
                port,
                self._make_client,
                has_room=self._has_room,
                context=context,
                max_handshakes=self._shares.handshakes,
                handshake_timeout_s=self.config.handshake_timeout_s,
            )
        )

    def _has_room(self) -> bool:
        if self.broker.memory.is_exhausted:
            return False
        return len(self.clients) < self._shares.amqp or self._oldest_newcomer() is not None

    def _oldest_newcomer(self) -> Client | None:
        """Return the client that has been connected longest without a login. It makes room if there are too many clients."""
        while self._newcomers:
            oldest = next(iter(self._newcomers))
            if oldest.session is None:
                return oldest
            del self._newcomers[oldest]
        return None

    def _make_client(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection. An exception here would close the listener."""
        try:
            return Client(self)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.broker.internal_errors.report("accepting a client", "a new connection")
            return Refused()

    async def _start_http(self) -> None:
        try:
            from holtmq.management.http import HttpServer  # an optional extra
        except ImportError as error:
            log.warning("HTTP API and web UI are disabled (%s): pip install 'holtmq[management]'", error)
            return
        context = tls_context(self.config) if self.config.https_port >= 0 else None
        shares = self._shares
        http = HttpServer(self, context, max_connections=shares.http, max_handshakes=shares.handshakes)
        try:
            await http.start()
        except OSError as error:
            if self.config.http_port == DEFAULT_HTTP_PORT:  # not set explicitly: AMQP takes precedence
                log.warning("HTTP API and web UI are disabled: %s; choose a port with --http-port", error)
                return
            self._journal.close()
            raise
        self._http = http
        ports = {url.scheme: url.port for url in map(urlsplit, http.addresses)}
        self.properties = {**self.properties, "http_api": {**ports, "instance": self.instance}}

    def _after_turn(self, clients: list[Client]) -> None:
        self._commits.flush(clients)
        self.sender.start()
        self._commits.start()
        self.pressure.update()


def tls_context(config: Config) -> ssl.SSLContext:
    """Return the TLS settings of all encrypted listeners."""
    assert config.tls_certificate is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    if config.tls_client_ca is not None:
        context.load_verify_locations(config.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
