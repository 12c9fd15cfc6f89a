"""The table of queue behaviour: one text file of scenarios that every implementation of a queue is run through.

A scenario starts with a line `## rule`. Its steps run in order against an empty vhost; all queues are durable and all
messages persistent:

    queue NAME [ARGUMENTS]                  exchange NAME TYPE              bind EXCHANGE QUEUE KEY [ARGUMENTS]
    policy NAME PATTERN DEFINITION          set a policy for queues
    put QUEUE BODY [PROPERTIES]             -> accepted | rejected
    publish EXCHANGE KEY BODY [PROPERTIES]
    get QUEUE                               -> BODY | BODY again | none     again: the message is marked as redelivered
    ack BODY    requeue BODY    reject BODY                                 settle a message that was got
    wait MILLISECONDS
    count QUEUE                             -> NUMBER of ready messages
    drain QUEUE                             -> BODY …                       get and acknowledge all messages
    deaths BODY                             -> QUEUE/REASON/COUNT …         the x-death header of a message that was got
    key BODY                                -> ROUTING-KEY
    header BODY NAME                        -> VALUE

`! CODE` stands for an error. `~` before a second outcome is what RabbitMQ does instead. A line `@ reason` says why RabbitMQ
cannot be asked; `@clock` says that the scenario depends on exact times, which only a test clock gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("queues.cases")
TABLE = re.compile(r" (\{.*\})$")


@dataclass(frozen=True, slots=True)
class QueueStep:
    text: str
    verb: str
    words: tuple[str, ...]
    table: Mapping[str, Any]
    expected: str | None
    expected_of_rabbitmq: str | None


@dataclass(frozen=True, slots=True)
class QueueScenario:
    rule: str
    steps: tuple[QueueStep, ...]
    unanswerable: str | None = None
    """Why RabbitMQ cannot be asked."""
    needs_clock: bool = False


def load_queue_scenarios() -> list[QueueScenario]:
    return list(_scenarios(FILE.read_text().splitlines()))


def _scenarios(lines: list[str]) -> Iterator[QueueScenario]:
    rule, steps, unanswerable, needs_clock = "", list[QueueStep](), None, False
    for line in [*lines, "## end"]:
        if line.startswith("## "):
            if steps:
                yield QueueScenario(rule, tuple(steps), unanswerable, needs_clock)
            rule, steps, unanswerable, needs_clock = line[3:], [], None, False
        elif line == "@clock":
            needs_clock = True
        elif line.startswith("@ "):
            unanswerable = line[2:]
        elif line.strip() and not line.startswith("#"):
            steps.append(_step(line))


def _step(line: str) -> QueueStep:
    text, *others = re.split(r"\s+~\s+", line)
    action, expected = _outcome(text)
    of_rabbitmq = _outcome(f"x {others[0]}")[1] if others else expected
    found = TABLE.search(action)
    table = json.loads(found[1]) if found else {}
    verb, *words = action[: found.start()].split() if found else action.split()
    return QueueStep(line, verb, tuple(words), table, expected, of_rabbitmq)


def _outcome(text: str) -> tuple[str, str | None]:
    found = re.fullmatch(r"(.*?)\s+(?:->\s*(.*)|(!\s*\d+))", text)
    if found is None:
        return text, None
    return found[1], found[3] or found[2].strip()
