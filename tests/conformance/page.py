"""Writes docs/conformance.md from the tables: python -m tests.conformance.page

What it says of each broker is what the tests expect of it, and they run against both.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.conformance.behaviour import RULES, Rule
from tests.conformance.record import RECORDED, tell
from tests.conformance.table import Scenario, load

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HEAD = """# What HoltMQ and RabbitMQ do, rule by rule

This page is generated (`python -m tests.conformance.page`) from two tables in `tests/conformance`: `behaviour/`, rules that are
tried over the wire, and `routing.cases`, where messages go. The test suite runs both against HoltMQ and against a live
RabbitMQ {version}; what it sees there is what stands here. Where the two differ, the line is marked **≠**.

"""


def render() -> str:
    version = json.loads(RECORDED.read_text())["version"]
    different = sum(rule.holtmq != rule.rabbitmq for rule in RULES)
    parts = [HEAD.format(version=version)]
    parts.append(f"{len(RULES)} rules of behaviour, {different} of them different.\n")
    for section, rules in groupby(RULES, key=lambda rule: rule.section):
        parts.append(f"\n## {section}\n\n| | rule | HoltMQ | RabbitMQ |\n|---|---|---|---|\n")
        parts += [_row(rule) for rule in rules]
    scenarios = load()
    cases = sum(step.is_case for scenario in scenarios for step in scenario.steps)
    parts.append(
        f"\n## Routing\n\n{len(scenarios)} scenarios with {cases} cases; [routing.md](routing.md) has the rules in words.\n\n"
    )
    parts.append("| | scenario | cases | where RabbitMQ differs |\n|---|---|---|---|\n")
    parts += [_scenario(scenario) for scenario in scenarios]
    return "".join(parts)


def _row(rule: Rule) -> str:
    is_same = rule.holtmq == rule.rabbitmq
    cells = (_outcome(rule.holtmq), "the same" if is_same else _outcome(rule.rabbitmq))
    return f"| {'' if is_same else '**≠**'} | {_cell(rule.text)} | {cells[0]} | {cells[1]} |\n"


def _scenario(scenario: Scenario) -> str:
    cases = [step for step in scenario.steps if step.is_case]
    if scenario.unanswerable is not None:
        note = scenario.unanswerable
    else:
        differing = [step for step in cases if step.expected != step.expected_of_rabbitmq]
        note = "; ".join(f"`{step.text.strip()}`: {tell(step.expected_of_rabbitmq)}" for step in differing)
    return f"| {'**≠**' if note else ''} | {_cell(scenario.rule)} | {len(cases)} | {_cell(note)} |\n"


def _outcome(outcome: Any) -> str:
    match outcome:
        case (("channel" | "connection") as scope, int(code), (int(class_id), int(method_id))):
            return f"{scope} closed: {code}, class {class_id} method {method_id}"
        case True:
            return "yes"
        case _:
            return f"`{_cell(str(outcome))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render())
