"""Checks of passwords. Hashing is slow on purpose, so it runs beside the event loop, in few threads.

A password that was right is remembered for a while: pages that poll and clients that reconnect cost nothing. A wrong one
slows down further attempts from the same address.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, TypeVar

from holtmq.accounts import NOBODY, User
from holtmq.errors import LoginRefusedError

T = TypeVar("T")
log = logging.getLogger(__name__)

THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))
"""Hashes that are computed at a time. Each takes a processor and 16 MiB."""
REMEMBERED_S = 600.0
FREE_FAILURES = 3
"""Failed logins from an address before further attempts have to wait."""
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
FORGIVEN_S = 600.0
"""Time after the last failed login from an address until its failures are forgotten."""
MAX_ADDRESSES = 10_000
MAX_WAITING = 1000
"""Logins from one address that may wait to be checked."""
REFUSED = "Login was refused: unknown user or wrong password"


class Passwords:
    """Checks and hashes the passwords of a broker's users."""

    def __init__(
        self,
        users: Mapping[str, User],
        timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._users = users
        self._timeout_s = timeout_s
        self._attempts = Attempts(sleep)
        self._remembered: dict[str, _Remembered] = {}
        self._secret = secrets.token_bytes(32)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holtmq-passwords")

    def recall(self, name: str, password: str) -> User | None:
        """Return the user if this password was checked recently and the user has not changed since."""
        found = self._remembered.get(name)
        if found is None or found.user is not self._users.get(name) or found.until < _now():
            return None
        return found.user if secrets.compare_digest(found.digest, self._digest(password)) else None

    async def check(self, name: str, password: str, host: str | None) -> User:
        """Return the user. Raise LoginRefusedError if the name is unknown or the password is wrong."""
        user = self.recall(name, password)
        if user is not None:
            return user
        try:
            async with asyncio.timeout(self._timeout_s), self._attempts.turn(host) as address:
                user = self.recall(name, password) or await self._check(name, password)
                if user is None:
                    address.failed(_now())
                    log.warning("failed login as user %.80r from %s", name, host or "this machine")
                    raise LoginRefusedError(REFUSED)
                return user
        except TimeoutError as error:
            raise LoginRefusedError(
                f"Login was refused: too many failed logins from this address, or too many logins at a time, "
                f"to check this one within {self._timeout_s:g} s; try again later"
            ) from error

    async def _check(self, name: str, password: str) -> User | None:
        user = self._users.get(name, NOBODY)
        is_right = await self.compute(lambda: user.has_password(password))
        if not is_right or not password or user is not self._users.get(name):
            return None
        self._remember(user, password)
        return user

    async def compute(self, slow: Callable[[], T]) -> T:
        """Run a computation with hashes beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, slow)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _remember(self, user: User, password: str) -> None:
        users = self._users
        if len(self._remembered) > len(users):
            self._remembered = {name: kept for name, kept in self._remembered.items() if kept.user is users.get(name)}
        self._remembered[user.name] = _Remembered(user, self._digest(password), _now() + REMEMBERED_S)

    def _digest(self, password: str) -> bytes:
        return blake2b(password.encode(errors="surrogatepass"), key=self._secret).digest()


class _Remembered(NamedTuple):
    """A password that was right, as a keyed hash that nobody outside this process can compute."""

    user: User
    digest: bytes
    until: float


@dataclass(slots=True)
class _Address:
    """The logins from one address. They are checked one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    failures: int = 0
    failed_at: float = 0.0

    def failed(self, now: float) -> None:
        self.failures += 1
        self.failed_at = now

    def delay_s(self, now: float) -> float:
        """Return how long the next login has to wait. The delay doubles with each failure."""
        if now - self.failed_at > FORGIVEN_S:
            self.failures = 0
        if self.failures < FREE_FAILURES:
            return 0.0
        return min(FIRST_DELAY_S * 2.0 ** min(self.failures - FREE_FAILURES, 10), LONGEST_DELAY_S)


class Attempts:
    """The addresses from which logins failed recently. The table is bounded: the oldest entry makes room for a new one."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._addresses: dict[str, _Address] = {}

    @asynccontextmanager
    async def turn(self, host: str | None) -> AsyncIterator[_Address]:
        """Wait until a login from this address may be checked: after those before it, and after a delay if some failed."""
        key = network_of(host)
        address = self._addresses.setdefault(key, _Address())
        if address.waiting >= MAX_WAITING:
            raise LoginRefusedError("Login was refused: too many logins from this address at a time; try again later")
        address.waiting += 1
        try:
            async with address.lock:
                delay_s = address.delay_s(_now())
                if delay_s:
                    await self._sleep(delay_s)
                yield address
        finally:
            address.waiting -= 1
            self._put_back(key, address)

    def _put_back(self, key: str, address: _Address) -> None:
        if address.waiting:
            return
        self._addresses.pop(key, None)
        if address.failures:
            self._addresses[key] = address
        if len(self._addresses) > MAX_ADDRESSES:
            oldest = next((each for each, state in self._addresses.items() if not state.waiting), None)
            if oldest is not None:
                del self._addresses[oldest]

    def __len__(self) -> int:
        return len(self._addresses)


def network_of(host: str | None) -> str:
    """Return what counts as one address: an IPv4 address, or the 64-bit prefix of an IPv6 one, which one customer gets."""
    if host is None:
        return ""
    try:
        address = ip_address(host.split("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)


def _now() -> float:
    return asyncio.get_running_loop().time()
