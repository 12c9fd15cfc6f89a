"""A broker that runs: listens, keeps the time, and has a thread wait for the disk.

Work is done in turns, on the event loop. All that sockets bring in one round of the loop is one turn; at its end messages
go to consumers, and what the journal collected is handed to the disk, unless it is still busy with the batch before.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING

from holtmq.broker.broker import Broker
from holtmq.compatibility import RABBITMQ_PRODUCT, RABBITMQ_VERSION
from holtmq.config import DEFAULT_HTTP_PORT, Config
from holtmq.errors import ConnectionForcedError, StoreError
from holtmq.protocol.server_connection import Limits
from holtmq.server.client import Client
from holtmq.server.startup import open_broker
from holtmq.store.sqlite.batch_journal import SqliteJournal
from holtmq.table import FieldValue

if TYPE_CHECKING:
    from holtmq.management.http import HttpServer

log = logging.getLogger(__name__)

JOURNAL_BYTES = 32 * 1024 * 1024
"""From so many bytes on that wait for the disk, publishers are held back, until it is a half."""
TURN_BYTES = 256 * 1024
"""A turn that took in so much ends at once."""
RETRY_S = 1.0
STOP_S = 5.0
STEP_BACK_S = 0.02
"""The longest that publishers wait for consumers to catch up before they may send some more."""
CAPABILITIES = (
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
    "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
)  # fmt: skip


class Server:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = Limits(config.max_channels, config.max_frame_bytes, config.max_message_bytes, config.heartbeat_s)
        self.properties: Mapping[str, FieldValue] = {
            "product": RABBITMQ_PRODUCT,
            "version": RABBITMQ_VERSION,
            "platform": f"HoltMQ {version('holtmq')}, Python {platform.python_version()}",
            "information": "HoltMQ, an AMQP broker on one file, which does as RabbitMQ does",
            "capabilities": dict.fromkeys(CAPABILITIES, True),
        }
        self.clients: set[Client] = set()
        self.started_at = time.time()
        self.broker: Broker
        self._journal: SqliteJournal
        self._listeners: list[asyncio.Server] = []
        self._http: HttpServer | None = None
        self._disk = ThreadPoolExecutor(1, "holtmq-disk")
        self._commit: asyncio.Future[int] | None = None
        self._is_in_turn = False
        self._turn_bytes = 0
        self._to_flush: list[Client] = []
        self._waiting: list[Client] = []
        self._waiting_for_disk: list[tuple[int, asyncio.Future[None]]] = []
        self._blocked_for: str | None = None
        self._stepped_back: list[Client] = []
        self._step_forward_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._is_stopping = False

    async def start(self) -> None:
        """Open the file and listen."""
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._listeners.append(
            await self._loop.create_server(lambda: Client(self), config.host, config.amqp_port, start_serving=False)
        )
        if config.tls_port is not None:
            self._listeners.append(
                await self._loop.create_server(
                    lambda: Client(self), config.host, config.tls_port, ssl=tls_context(config), start_serving=False
                )
            )
        self.broker, self._journal = open_broker(config, self.address)
        self._journal_to_disk()
        if config.http_port >= 0 or config.https_port >= 0:
            await self._start_http()
        for listener in self._listeners:
            await listener.start_serving()

    async def _start_http(self) -> None:
        try:
            from holtmq.management.http import HttpServer  # with an extra: a broker does without
        except ImportError as error:
            log.warning("no HTTP API and no pages, %s: pip install 'holtmq[management]'", error)
            return
        context = tls_context(self.config) if self.config.https_port >= 0 else None
        http = HttpServer(self, context)
        try:
            await http.start()
        except OSError as error:
            if self.config.http_port == DEFAULT_HTTP_PORT:  # nobody asked for it by name: messages come first
                log.warning("no HTTP API and no pages: %s; choose a port with --http-port", error)
                return
            for listener in self._listeners:
                listener.close()
            self._journal.close()
            raise
        self._http = http

    @property
    def http_address(self) -> str | None:
        return self._http.addresses[0] if self._http is not None else None

    @property
    def address(self) -> str:
        host, port = self._listeners[0].sockets[0].getsockname()[:2]
        return f"amqp://{host}:{port}"

    @property
    def addresses(self) -> list[str]:
        named = zip(("amqp", "amqps"), self._listeners, strict=False)
        amqp = [
            f"{scheme}://{host}:{port}"
            for scheme, listener in named
            for host, port in (socket.getsockname()[:2] for socket in listener.sockets)
        ]
        return amqp + (self._http.addresses if self._http is not None else [])

    @property
    def blocked_for(self) -> str | None:
        """Why publishers are held back, if they are."""
        return self._blocked_for

    async def written(self) -> None:
        """Wait until all that was done so far is on disk."""
        batch = self._journal.batch if self._journal.has_changes else self._journal.batch - 1
        if self.broker.committed_batch < batch:
            future = self._loop.create_future()
            self._waiting_for_disk.append((batch, future))
            await future

    async def stop(self) -> None:
        """Say goodbye to all clients, finish what is to be written, close the file."""
        self._is_stopping = True
        if self._http is not None:
            await self._http.stop()
        for listener in self._listeners:
            listener.close()
        self.begin_turn()
        for client in list(self.clients):
            client.close(ConnectionForcedError("broker forced connection closure with reason 'shutdown'"))
        deadline = self._loop.time() + STOP_S
        while (self.clients or self._is_in_turn) and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        while self._commit is not None:
            await asyncio.wait([self._commit])
            await asyncio.sleep(0)
        if self._journal.has_changes or self._journal.is_writing:
            self._journal.write()
            self._journal.commit()
        self._disk.shutdown()
        self._journal.close()

    def begin_turn(self) -> None:
        if not self._is_in_turn:
            self._is_in_turn = True
            self._turn_bytes = 0
            self._loop.call_soon(self._end_turn)
            try:
                self.broker.begin(time.time_ns() // 1_000_000)
            except Exception:
                # What is due concerns one queue; a defect there must not keep all others from their turn.
                log.exception("internal error with what was due")

    def received(self, size: int) -> None:
        """So many bytes were carried out. libuv may read one socket many times in a round: that is too much for a turn."""
        self._turn_bytes += size
        if self._turn_bytes >= TURN_BYTES:
            self._end_turn()

    def _end_turn(self) -> None:
        if not self._is_in_turn:
            return
        self._is_in_turn = False
        self.broker.end()
        to_flush, self._to_flush = self._to_flush, []
        committed = self.broker.committed_batch
        for client in to_flush:
            if client.needs_batch > committed:
                client.connection.awaits_commit = True
                self._waiting.append(client)
            else:
                client.flush()
        if self._commit is None and self._journal.has_changes:
            self._journal_to_disk()
        self._watch_journal()
        self._set_timer()
        if self.broker.is_crowded:
            self._step_back()
        elif self._stepped_back:
            self._step_forward()

    def _step_back(self) -> None:
        """Let consumers catch up: who only publishes is not read for a moment. There is no harm in it, as they are what
        limits the throughput; without it the queue would grow beyond its window and the disk would have to take part."""
        if not self._stepped_back and self._blocked_for is None:
            self._stepped_back = [client for client in self.clients if client.only_publishes]
            for client in self._stepped_back:
                client.hold_back(is_held=True)
            self._step_forward_timer = self._loop.call_later(STEP_BACK_S, self._step_forward)

    def _step_forward(self) -> None:
        if self._step_forward_timer is not None:
            self._step_forward_timer.cancel()
        clients, self._stepped_back = self._stepped_back, []
        if self._blocked_for is None:
            for client in clients:
                client.hold_back(is_held=False)

    def will_flush(self, client: Client) -> None:
        self._to_flush.append(client)
        self.begin_turn()

    def _set_timer(self) -> None:
        """Have a turn when something is due."""
        due = self.broker.next_timer
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0, due / 1000 - time.time()) + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.begin_turn()

    def _journal_to_disk(self) -> None:
        if self._commit is not None or not (self._journal.has_changes or self._journal.is_writing):
            return
        if not self._journal.is_writing:
            self.broker.sealed()
        try:
            self._journal.write()
        except StoreError as error:
            self._disk_failed(error)
            return
        self._commit = self._loop.run_in_executor(self._disk, self._journal.commit)
        self._commit.add_done_callback(self._committed)

    def _committed(self, commit: asyncio.Future[int]) -> None:
        self._commit = None
        try:
            batch = commit.result()
        except StoreError as error:
            self._disk_failed(error)
            return
        self._unblock("disk")
        self.begin_turn()
        self.broker.committed(batch)
        for awaited, future in self._waiting_for_disk:
            if awaited <= batch and not future.done():
                future.set_result(None)
        self._waiting_for_disk = [entry for entry in self._waiting_for_disk if not entry[1].done()]
        waiting, self._waiting = self._waiting, []
        for client in waiting:
            client.connection.awaits_commit = False
            self._to_flush.append(client)
            client.resume()

    def _disk_failed(self, error: StoreError) -> None:
        """Keep what there is to write, take nothing more from publishers, and try again."""
        if self._blocked_for != "disk":
            log.error("cannot write, publishers are held back until it works again: %s", error)
        self._block("disk")
        self._loop.call_later(RETRY_S, self._journal_to_disk)

    def _watch_journal(self) -> None:
        size = self._journal.size
        if size > JOURNAL_BYTES:
            self._block("journal")
        elif size < JOURNAL_BYTES // 2:
            self._unblock("journal")

    def _block(self, reason: str) -> None:
        if self._blocked_for is None:
            self._blocked_for = reason
            for client in self.clients:
                if client.is_publisher:
                    self._hold(client)
        elif reason == "disk":
            self._blocked_for = reason

    def _unblock(self, reason: str) -> None:
        if self._blocked_for == reason:
            self._blocked_for = None
            for client in self.clients:
                client.hold_back(is_held=False)
                client.connection.unblock()

    def _hold(self, client: Client) -> None:
        client.connection.block(f"low on {self._blocked_for}")
        client.hold_back(is_held=True)

    def publisher_came(self, client: Client) -> None:
        if self._blocked_for is not None:
            self._hold(client)

    def admit(self, client: Client) -> bool:
        if len(self.clients) >= self.config.max_connections or self._is_stopping:
            log.warning("refusing %s: %d clients are connected, no more are allowed", client.name, len(self.clients))
            return False
        self.clients.add(client)
        self.broker.churn.connections_opened += 1
        return True

    def dismiss(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            churn = self.broker.churn
            churn.connections_closed += 1
            churn.bytes_received += client.bytes_received
            churn.bytes_sent += client.bytes_sent
        if client in self._to_flush:
            self._to_flush.remove(client)
        if client in self._waiting:
            self._waiting.remove(client)


def tls_context(config: Config) -> ssl.SSLContext:
    assert config.tls_certificate is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    if config.tls_client_ca is not None:
        context.load_verify_locations(config.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
