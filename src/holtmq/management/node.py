"""The ports through which the HTTP API sees the broker process. The server implements them; nothing here imports it."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

from holtmq.accounts import User
from holtmq.broker.broker import Broker
from holtmq.broker.session import Session
from holtmq.clock import SteadyClock
from holtmq.config import Config
from holtmq.errors import AmqpError
from holtmq.table import FieldValue

T = TypeVar("T")


class WireConnection(Protocol):
    """The AMQP connection of a client, with the limits negotiated for it."""

    frame_max: int
    channel_max: int
    client_properties: Mapping[str, FieldValue]
    is_blocked: bool


class ConnectedClient(Protocol):
    """A connected AMQP client."""

    name: str
    connected_at: float
    bytes_received: int
    bytes_sent: int
    reads: int
    writes: int

    @property
    def is_reading(self) -> bool: ...
    @property
    def session(self) -> Session | None: ...
    @property
    def connection(self) -> WireConnection: ...
    @property
    def mechanism(self) -> str: ...
    @property
    def heartbeat_s(self) -> int: ...
    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def here(self) -> tuple[str, int]: ...
    @property
    def tls(self) -> tuple[str, str] | None: ...
    def close(self, error: AmqpError) -> None: ...


class PasswordCheck(Protocol):
    """Checks and hashes passwords beside the event loop, because it is slow."""

    async def check(self, name: str, password: str, host: str | None) -> User:
        """Return the user. Raise LoginRefusedError if the name is unknown or the password is wrong."""

    async def compute(self, slow: Callable[[], T]) -> T:
        """Run a computation with hashes."""


class Node(Protocol):
    """A running broker. A change starts with `begin_turn` and is durable once `written` returns."""

    config: Config
    broker: Broker
    clock: SteadyClock
    started_at: float
    instance: str
    """Identifies this process. AMQP clients get it with the ports of the HTTP API, as a sign that they have found it."""

    @property
    def passwords(self) -> PasswordCheck: ...
    @property
    def clients(self) -> Collection[ConnectedClient]: ...
    @property
    def addresses(self) -> list[str]:
        """The listening addresses, as URLs."""

    @property
    def blocked_for(self) -> str | None:
        """The resource that publishers are blocked for, or None."""

    @property
    def blocked_reason(self) -> str:
        """Why publishers are blocked, in a few words."""

    @property
    def disk_free_limit(self) -> int:
        """Free disk space below which publishers are blocked, in bytes."""

    def begin_turn(self) -> None: ...
    async def written(self) -> None: ...
    def vacuum(self) -> Future[None]:
        """Begin to give all unused space of the data file back, in small steps. A call joins a run that is under way."""

    @property
    def data_bytes(self) -> int:
        """Size of the data file with its WAL, in bytes."""
