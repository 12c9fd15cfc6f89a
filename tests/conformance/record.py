"""Record what a live RabbitMQ does with every case of the table: python -m tests.conformance.record

Write the outcomes beside the table, fill in `-> ?` in the table itself, and list the cases in which RabbitMQ does something
else than the table says. The exit code is 1 if there is such a case.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conformance.table import FILE, Outcome, Scenario, load
from tests.conformance.targets import amqp_target
from tests.peers.rabbitmq import CONSISTENT_HASH_PLUGIN, running_rabbitmq

RECORDED = Path(__file__).with_name("rabbitmq.json")
UNKNOWN = ("?",)


def main() -> int:
    scenarios = answerable()
    with running_rabbitmq(CONSISTENT_HASH_PLUGIN) as rabbitmq:
        outcomes = {scenario.rule: observe(scenario, rabbitmq.amqp_port) for scenario in scenarios}
    fill_in(scenarios, outcomes)
    scenarios = answerable()
    differences = [
        f"line {step.line}: {step.text}\n    RabbitMQ: {outcome}"
        for scenario in scenarios
        for step, outcome in zip(scenario.steps, outcomes[scenario.rule], strict=True)
        if step.expected_of_rabbitmq != outcome
    ]
    save(scenarios, rabbitmq.version, outcomes)
    print("\n".join(differences))
    cases = sum(step.is_case for scenario in scenarios for step in scenario.steps)
    print(f"{len(scenarios)} scenarios, {cases} cases, {len(differences)} differences; recorded in {RECORDED.name}")
    return 1 if differences else 0


def answerable() -> list[Scenario]:
    return [scenario for scenario in load() if scenario.unanswerable is None]


def observe(scenario: Scenario, amqp_port: int) -> list[Outcome]:
    with amqp_target(amqp_port) as target:
        return target.run(scenario)


def fill_in(scenarios: list[Scenario], outcomes: dict[str, list[Outcome]]) -> None:
    lines = FILE.read_text().splitlines()
    for scenario in scenarios:
        for step, outcome in zip(scenario.steps, outcomes[scenario.rule], strict=True):
            if step.expected == UNKNOWN:
                lines[step.line - 1] = step.text.replace("-> ?", tell(outcome)).rstrip()
    FILE.write_text("\n".join(lines) + "\n")


def tell(outcome: Outcome) -> str:
    if isinstance(outcome, int):
        return f"! {outcome}"
    return "-> " + " ".join(json.dumps(q, ensure_ascii=False) if not q or " " in q else q for q in outcome or ())


def save(scenarios: list[Scenario], version: str, outcomes: dict[str, list[Outcome]]) -> None:
    recorded = {
        scenario.rule: [
            [step.text, outcome] for step, outcome in zip(scenario.steps, outcomes[scenario.rule], strict=True) if step.is_case
        ]
        for scenario in scenarios
    }
    body = ",\n".join(
        f" {json.dumps(rule, ensure_ascii=False)}: [\n"
        + ",\n".join("  " + json.dumps(pair, ensure_ascii=False) for pair in pairs)
        + "\n ]"
        for rule, pairs in recorded.items()
    )
    RECORDED.write_text(f'{{"version": {json.dumps(version)}, "scenarios": {{\n{body}\n}}}}\n')


if __name__ == "__main__":
    sys.exit(main())
