"""The clock of the machine may jump; the time of a running broker does not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holtmq.clock import SteadyClock
from holtmq.testing import running_broker
from tests.amqp_client import Amqp
from tests.deadline import eventually

DAY_NS = 86_400 * 10**9


def jump(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + by_ns)
    monkeypatch.setattr(time, "time", lambda: (real() + by_ns) / 10**9)


@pytest.mark.parametrize("by_ns", [DAY_NS, -DAY_NS])
def test_the_clock_does_not_follow_a_jump(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    clock, before_ms = SteadyClock(), time.time_ns() // 1_000_000
    jump(monkeypatch, by_ns)
    first, second = clock.now_ms(), clock.now_ms()
    assert first <= second
    assert abs(first - before_ms) < DAY_NS // 1_000_000 // 2


@pytest.mark.parametrize("by_ns", [DAY_NS, -DAY_NS])
def test_nothing_expires_when_the_clock_of_the_machine_is_set(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    with running_broker() as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", expires=3_600_000, message_ttl=3_600_000)
        channel.put("q", b"1")
        jump(monkeypatch, by_ns)
        channel.put("q", b"2")
        channel.declare("soon", message_ttl=1)
        channel.put("soon", b"3")
        eventually(lambda: channel.count("soon") == 0, "a message whose time has come")
        assert channel.drain("q") == [b"1", b"2"]


def test_messages_keep_their_order_when_the_broker_starts_with_an_earlier_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in (b"1", b"2"):
        with running_broker(tmp_path / "b.db") as broker, Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            channel.put("q", body, delivery_mode=2)
        jump(monkeypatch, -DAY_NS)
    with running_broker(tmp_path / "b.db") as broker, Amqp(broker.port) as amqp:
        assert amqp.channel().drain("q") == [b"1", b"2"]
