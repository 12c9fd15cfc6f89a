"""Checks of passwords: beside the loop, a few at a time, remembered when right, slowed down when wrong."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holtmq.accounts import RABBITMQ_HASHING, SCRYPT, User, rabbitmq_hash
from holtmq.errors import LoginRefusedError
from holtmq.server.passwords import MAX_ADDRESSES, REFUSED, THREADS, Attempts, Passwords, network_of
from tests.deadline import PATIENCE_S


class Hashes:
    """Counts the slow hashes, and on request holds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most_at_once = self._now = 0
        self.threads: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()
        self._lock = threading.Lock()
        self._scrypt = hashlib.scrypt
        monkeypatch.setattr(hashlib, "scrypt", self._counted)

    def _counted(self, password: bytes, **options: Any) -> bytes:
        with self._lock:
            self.count += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self.threads.add(threading.current_thread().name)
        assert self.go_on.wait(PATIENCE_S)
        with self._lock:
            self._now -= 1
        return self._scrypt(password, **{**options, "n": 2})


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> Hashes:
    return Hashes(monkeypatch)


class Office:
    """Passwords of some users, with delays that are recorded and not waited for."""

    def __init__(self) -> None:
        self.users = {"ann": User("ann").with_password("right"), "bare": User("bare")}
        self.users["old"] = User("old", rabbitmq_hash("right"), RABBITMQ_HASHING)
        self.delays: list[float] = []
        self.passwords = Passwords(self.users, PATIENCE_S, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)

    async def is_right(self, name: str, password: str, host: str | None = "10.0.0.1") -> bool:
        try:
            return (await self.passwords.check(name, password, host)).name == name
        except LoginRefusedError as error:
            return REFUSED not in str(error)


@pytest.fixture
def run(hashes: Hashes) -> Callable[[Callable[[Office], Coroutine[Any, Any, None]]], Office]:
    def run(test: Callable[[Office], Coroutine[Any, Any, None]]) -> Office:
        office = Office()
        hashes.count = 0
        asyncio.run(test(office))
        office.passwords.close()
        return office

    return run


Run = Callable[[Callable[[Office], Coroutine[Any, Any, None]]], Office]


def test_a_right_password_is_remembered_until_the_user_changes(run: Run, hashes: Hashes) -> None:
    async def test(office: Office) -> None:
        for _ in range(3):
            assert await office.is_right("ann", "right")
        assert hashes.count == 1
        assert not await office.is_right("ann", "wrong")
        assert hashes.count == 2
        office.users["ann"] = User("ann", office.users["ann"].password_hash, SCRYPT, ("management",))
        assert office.passwords.recall("ann", "right") is None
        assert await office.is_right("ann", "right")
        assert hashes.count == 3
        del office.users["ann"]
        assert not await office.is_right("ann", "right")

    run(test)


def test_every_refusal_costs_one_slow_hash_whoever_the_user_is(run: Run, hashes: Hashes) -> None:
    async def test(office: Office) -> None:
        for name in ("ann", "old", "bare", "nobody"):
            before = hashes.count
            assert not await office.is_right(name, "wrong", host=None)
            assert hashes.count == before + 1
        assert not await office.is_right("bare", "")
        assert await office.is_right("old", "right")

    run(test)


def test_hashes_are_computed_beside_the_loop_and_few_at_a_time(run: Run, hashes: Hashes) -> None:
    async def test(office: Office) -> None:
        hashes.go_on.clear()
        logins = [asyncio.create_task(office.is_right("nobody", "x", f"10.0.0.{number}")) for number in range(20)]
        while hashes.count < THREADS:
            await asyncio.sleep(0)  # the loop goes on meanwhile
        hashes.go_on.set()
        assert not any(await asyncio.gather(*logins))

    run(test)
    assert hashes.most_at_once <= THREADS
    assert all(name.startswith("holtmq-passwords") for name in hashes.threads - {"MainThread"})


def test_logins_of_one_user_from_one_address_at_once_cost_one_hash(run: Run, hashes: Hashes) -> None:
    async def test(office: Office) -> None:
        assert all(await asyncio.gather(*[office.is_right("ann", "right") for _ in range(50)]))

    run(test)
    assert hashes.count == 1


def test_failed_logins_slow_down_their_address_more_and_more(run: Run) -> None:
    async def test(office: Office) -> None:
        assert await office.is_right("ann", "right", "10.0.0.2")
        for _ in range(12):
            assert not await office.is_right("ann", "wrong")
        assert await office.is_right("ann", "right")  # remembered: not slowed down
        assert await office.is_right("old", "right", "10.0.0.2")

    assert run(test).delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_the_table_of_addresses_is_bounded() -> None:
    async def test() -> None:
        attempts = Attempts(asyncio.sleep)
        for number in range(MAX_ADDRESSES + 50):
            async with attempts.turn(f"2001:db8:0:{number:x}::1") as address:
                address.failed(0.0)
        assert len(attempts) == MAX_ADDRESSES
        async with attempts.turn("10.0.0.1"):
            assert len(attempts) == MAX_ADDRESSES + 1
        assert len(attempts) == MAX_ADDRESSES

    asyncio.run(test())


def test_a_login_that_is_not_checked_in_time_is_refused(hashes: Hashes) -> None:
    async def test() -> None:
        user = User("ann").with_password("right")
        hashes.go_on.clear()
        passwords = Passwords({"ann": user}, timeout_s=0.01)
        with pytest.raises(LoginRefusedError, match="try again later"):
            await passwords.check("ann", "right", None)
        hashes.go_on.set()
        passwords.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        (None, ""),
        ("/run/socket", "/run/socket"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str | None, network: str) -> None:
    assert network_of(host) == network
