"""A proxy between a client and a server that cuts the connections at a chosen moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Side = Literal["request", "answer"]


class CuttingProxy:
    """Forwards connections. When `cut_at` is set, the connection whose bytes contain it is cut.

    On the side of the "request", the server does not get these bytes. On that of the "answer", the server gets everything
    that the client sends, and the client gets no answer any more: what the server did stays unknown to it.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
        self._trigger: tuple[bytes, Side] | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut_at(self, text: bytes, side: Side) -> None:
        """Cut the next connection on which a client sends this text, before it arrives or after it was executed."""
        self._trigger = (text, side)

    def cut_all(self) -> None:
        """Cut all connections."""
        for pair in self._pairs:
            _cut(*pair)
        self._pairs.clear()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            state = _State()
            for work in (self._forward, self._return):
                threading.Thread(target=work, args=(client, server, state), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, state: _State) -> None:
        for data in _received(client):
            trigger = self._trigger
            if trigger is not None and trigger[0] in data:
                self._trigger = None
                self.cuts += 1
                if trigger[1] == "request":
                    break
                state.is_muted = True
            if not _sent(server, data):
                break
        _cut(client, server)
        client.close()

    def _return(self, client: socket.socket, server: socket.socket, state: _State) -> None:
        for data in _received(server):
            if state.is_muted or not _sent(client, data):
                break
        _cut(client, server)
        server.close()


class _State:
    is_muted = False


def _received(source: socket.socket) -> Iterator[bytes]:
    with suppress(OSError):
        while data := source.recv(1 << 20):
            yield data


def _sent(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def _cut(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    """A proxy to a port of this machine while the block runs."""
    proxy = CuttingProxy(("127.0.0.1", port))
    try:
        yield proxy
    finally:
        proxy.close()
