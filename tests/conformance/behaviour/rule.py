"""A rule: what is done, what is seen on HoltMQ, and what on RabbitMQ where that differs."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.amqp_client import Amqp, Channel, ClosedError

PATIENCE_S = 5.0
_numbers = itertools.count(1)


class Scene:
    """A broker to try a rule on: connections that end with it, and names that nobody else has."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connections: list[Amqp] = []
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def connect(self, **options: Any) -> Amqp:
        amqp = Amqp(self.port, **options)
        self._connections.append(amqp)
        return amqp

    def channel(self, **options: Any) -> Channel:
        """A channel on a connection of its own."""
        return self.connect(**options).channel()

    def queue(self) -> str:
        self._queues.append(self._name("q"))
        return self._queues[-1]

    def exchange(self) -> str:
        self._exchanges.append(self._name("e"))
        return self._exchanges[-1]

    def close(self) -> None:
        from holtmq.wire import methods as wire

        for amqp in self._connections:
            amqp.drop()
        with Amqp(self.port) as amqp:
            channel = amqp.channel()
            for queue in self._queues:
                try:
                    channel.delete(queue)
                except ClosedError:
                    channel = channel.reopen()
            for exchange in self._exchanges:
                channel.call(wire.ExchangeDelete(0, exchange), wire.ExchangeDeleteOk)

    @staticmethod
    def _name(kind: str) -> str:
        return f"{kind}-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True)
class Rule:
    section: str
    text: str
    try_on: Callable[[Scene], Any]
    holtmq: Any
    rabbitmq: Any

    @property
    def name(self) -> str:
        return f"{self.section}: {self.text}"


RULES: list[Rule] = []
_SAME = object()


def rule(
    section: str, text: str, sees: Any, *, rabbitmq: Any = _SAME
) -> Callable[[Callable[[Scene], Any]], Callable[[Scene], Any]]:
    """Make a function a rule: it returns what it saw."""

    def register(try_on: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        RULES.append(Rule(section, text, try_on, sees, sees if rabbitmq is _SAME else rabbitmq))
        return try_on

    return register


def closing(action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What an action makes the broker close: channel or connection, the code, and class and method to blame."""
    try:
        action(*arguments, **options)
    except ClosedError as error:
        return error.scope, error.code, error.method
    except (ConnectionResetError, BrokenPipeError):
        return "hung up"
    except TimeoutError:
        return "silence"
    return "nothing closed"


def code(action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The same, but the code alone."""
    outcome = closing(action, *arguments, **options)
    return outcome if isinstance(outcome, str) else outcome[1]


def eventually(look: Callable[[], Any], expected: Any) -> Any:
    """What is seen, as soon as it is what is expected, or else after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen


@contextmanager
def scene(port: int) -> Iterator[Scene]:
    one = Scene(port)
    try:
        yield one
    finally:
        one.close()
