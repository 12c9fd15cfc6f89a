"""A TCP proxy on loopback that breaks what goes through it: it cuts connections, swallows data, or waits to do so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 1 << 16


class TcpProxy:
    """Forwards connections to a port of loopback."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._is_refusing = False
        self._trap: bytes | None = None
        self._is_answered = False
        self._trapped: set[socket.socket] = set()
        self.sprung = threading.Event()
        """Set when the trap has cut a connection."""
        self._bait: bytes | None = None
        self.swallowed = threading.Event()
        """Set when something was sent that is not forwarded."""
        threading.Thread(target=self._accept, daemon=True).start()

    def aim(self, port: int) -> None:
        """Forward new connections to another port, as a load balancer does."""
        self._target = port

    def cut(self, *, for_good: bool = False) -> None:
        """Close all connections; `for_good` also refuses new ones until `heal`."""
        self._is_refusing = for_good
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._close(pair)

    def swallow(self) -> None:
        """Keep connections open and forward nothing more, as a network that drops packets does."""
        self.swallowed.clear()
        self._flows.clear()

    def swallow_from(self, text: bytes) -> None:
        """Swallow everything as soon as a client sends this text."""
        self._bait = text

    def heal(self) -> None:
        """Let everything through again. What was swallowed is lost with its connection."""
        self._trap = None
        if not self._flows.is_set():
            self.cut()
        self._flows.set()
        self._is_refusing = False

    def cut_at(self, text: bytes, *, is_answered: bool) -> None:
        """Cut the next connection whose client sends this text: before the server gets it, or when the server has answered."""
        self.sprung.clear()
        self._is_answered, self._trap = is_answered, text

    def close(self) -> None:
        self._is_refusing = True
        self._listener.close()
        self._flows.set()
        self.cut(for_good=True)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    if self._is_refusing:
                        raise ConnectionRefusedError
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                pair = (client, server)
                with self._lock:
                    self._pairs.add(pair)
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=self._forward, args=(pair, source, sink), daemon=True).start()

    def _forward(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if self._bait is not None and self._bait in data:
                    self._bait = None
                    self.swallow()
                if not self._flows.is_set():
                    self.swallowed.set()
                self._flows.wait()
                if self._is_trapped(pair, source, data):
                    self.sprung.set()
                    break
                sink.sendall(data)
        self._close(pair)

    def _is_trapped(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, data: bytes) -> bool:
        client, server = pair
        if source is server:
            return client in self._trapped
        if self._trap is None or self._trap not in data:
            return False
        self._trap = None
        if self._is_answered:
            self._trapped.add(client)
        return not self._is_answered

    def _close(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def tcp_proxy(port: int) -> Iterator[TcpProxy]:
    proxy = TcpProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
