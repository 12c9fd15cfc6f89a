"""The table of routing cases: one text file of scenarios that run on every implementation, HoltMQ's and others.

A scenario starts with a line `## rule`, and its steps run in order against an empty vhost:

    exchange NAME TYPE [internal] [auto-delete] [ARGUMENTS]     delete-exchange NAME
    queue NAME                                                  delete-queue NAME
    bind SOURCE QUEUE KEY [ARGUMENTS]                           unbind SOURCE QUEUE KEY [ARGUMENTS]
    link SOURCE EXCHANGE KEY [ARGUMENTS]                        unlink SOURCE EXCHANGE KEY [ARGUMENTS]
    publish EXCHANGE KEY [HEADERS]

followed by what must come of it: `-> QUEUE …` for a publish (nothing after the arrow: no queue), `! CODE` for an error; a
step without either must succeed. `~` before a second outcome is what RabbitMQ does instead, where HoltMQ departs from it.
A line `@ reason` says why RabbitMQ cannot be asked. Words are separated by blanks; one that is empty or
holds blanks stands in double quotes; tables are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from holtmq import Binding, Exchange, Queue, Table
from holtmq.table_json import table_from_json

FILE = Path(__file__).with_name("routing.cases")
Outcome: TypeAlias = tuple[str, ...] | int | None
"""The queues that a message reached, the code of an error, or None for an action that succeeds without a result."""


@dataclass(frozen=True, slots=True)
class Bind:
    binding: Binding


@dataclass(frozen=True, slots=True)
class Unbind:
    binding: Binding


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    name: str


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    name: str


@dataclass(frozen=True, slots=True)
class Publish:
    exchange: str
    key: str
    headers: Table


Action: TypeAlias = Exchange | Queue | Bind | Unbind | DeleteExchange | DeleteQueue | Publish


@dataclass(frozen=True, slots=True)
class Step:
    line: int
    text: str
    action: Action
    expected: Outcome
    expected_of_rabbitmq: Outcome
    is_case: bool
    """Whether the step states its outcome. Other steps only set the scene."""


@dataclass(frozen=True, slots=True)
class Scenario:
    rule: str
    steps: tuple[Step, ...]
    unanswerable: str | None = None
    """Why the scenario cannot run on RabbitMQ, if it cannot."""


def load() -> list[Scenario]:
    return list(_scenarios(FILE.read_text().splitlines()))


def _scenarios(lines: list[str]) -> Iterator[Scenario]:
    rule, steps, unanswerable = "", list[Step](), None
    for number, line in enumerate([*lines, "## end"], 1):
        if line.startswith("## "):
            if steps:
                yield Scenario(rule, tuple(steps), unanswerable)
            rule, steps, unanswerable = line[3:], [], None
        elif line.startswith("@ "):
            unanswerable = line[2:]
        elif line.strip() and not line.startswith("#"):
            steps.append(_step(number, line))


def _step(number: int, line: str) -> Step:
    text, *others = re.split(r"\s+~\s*", line)
    action_text, expected = _outcome(text)
    of_rabbitmq = _outcome(f"x {others[0]}".rstrip())[1] if others else expected
    try:
        action = _action(action_text)
    except (ValueError, StopIteration) as error:
        raise ValueError(f"line {number}: {line!r}: {error!r}") from error
    return Step(number, line, action, expected, of_rabbitmq, is_case=action_text != line)


def _outcome(text: str) -> tuple[str, Outcome]:
    found = re.fullmatch(r"(?P<action>.*?)\s+(->(?P<queues>.*)|!\s*(?P<code>\d+))", text)
    if found is None:
        return text, None
    if found["code"]:
        return found["action"], int(found["code"])
    return found["action"], tuple(sorted(_words(found["queues"])))


def _action(text: str) -> Action:
    text, table = _split_table(text)
    verb, *words = _words(text)
    match verb, words:
        case "exchange", [name, type_, *flags]:
            internal, auto_delete = "internal" in flags, "auto-delete" in flags
            return Exchange(name, type_, internal=internal, auto_delete=auto_delete, arguments=table)
        case "queue", [name]:
            return Queue(name, arguments=table)
        case "bind" | "unbind", [source, queue, key]:
            binding = Binding(source, queue, key, table)
            return Bind(binding) if verb == "bind" else Unbind(binding)
        case "link" | "unlink", [source, exchange, key]:
            binding = Binding(source, exchange, key, table, "exchange")
            return Bind(binding) if verb == "link" else Unbind(binding)
        case "delete-exchange", [name]:
            return DeleteExchange(name)
        case "delete-queue", [name]:
            return DeleteQueue(name)
        case "publish", [exchange, key]:
            return Publish(exchange, key, table)
        case _:
            raise ValueError(f"unknown step {verb!r} with {len(words)} words")


def _split_table(text: str) -> tuple[str, Table]:
    found = re.search(r' (\{["}].*)', text)
    if found is None:
        return text, Table()
    return text[: found.start()], table_from_json(json.loads(found[1]), "table")


def _words(text: str) -> list[str]:
    """Split a line into words. (shlex would take an apostrophe in a routing key for a quote.)"""
    return [json.loads(word) if word.startswith('"') else word for word in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', text)]
