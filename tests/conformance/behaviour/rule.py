"""A rule: an action, its outcome on HoltMQ, and its outcome on RabbitMQ where that differs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.amqp_client import Amqp, Channel, ClosedError

_numbers = itertools.count(1)


class Scene:
    """A broker to try a rule on. Its connections, queues and exchanges are removed at the end, and their names are unique."""

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
        """Open a channel on a new connection."""
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
    """Register a function as a rule. The function returns the outcome."""

    def register(try_on: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        RULES.append(Rule(section, text, try_on, sees, sees if rabbitmq is _SAME else rabbitmq))
        return try_on

    return register


def closing(action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what an action makes the broker close: channel or connection, reply code, and the failing class and method."""
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
    """Return the reply code with which an action makes the broker close the channel or the connection."""
    outcome = closing(action, *arguments, **options)
    return outcome if isinstance(outcome, str) else outcome[1]


@contextmanager
def scene(port: int) -> Iterator[Scene]:
    one = Scene(port)
    try:
        yield one
    finally:
        one.close()
