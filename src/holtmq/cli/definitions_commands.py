"""holtmq definitions: definitions files, and those of a broker."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.http_client import Api, api_options
from holtmq.cli.options import json_option
from holtmq.cli.output import print_json, show, write_secret
from holtmq.routing.check import Finding
from holtmq.routing.check import check as find_problems
from holtmq.routing.explanation_text import count
from holtmq.topology import Topology
from holtmq.topology.definitions_file import parse

LEVEL_STYLES = {"warning": "yellow", "notice": "cyan"}


@click.group()
def definitions() -> None:
    """Export, import and check definitions files, in the format of RabbitMQ."""


@definitions.command("export")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--vhost", "-V", help="Export only this vhost.")
@api_options
def export(api: Api, file: Path | None, vhost: str | None) -> None:
    """Write the definitions of a broker to FILE; without FILE, print them."""
    document = api.get("definitions") if vhost is None else api.get("definitions", vhost)
    if file is None:
        print_json(document)
        return
    write_secret(file, json.dumps(document, indent=2, ensure_ascii=False) + "\n")  # it has the hashes of passwords
    show(f"Definitions exported to {file}.")


@definitions.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--vhost", "-V", help="Vhost of definitions that do not name one.")
@api_options
def import_(api: Api, file: Path, vhost: str | None) -> None:
    """Import FILE into a broker.

    Definitions are added and nothing is removed. If FILE is invalid, nothing is imported.
    """
    document = parse(file.read_bytes())
    api.call("POST", "definitions", *([vhost] if vhost is not None else []), body=document)
    show(f"Definitions imported from {file}.")


@definitions.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option("--strict", is_flag=True, help="Exit with code 1 if there is a warning.")
def check(file: Path, *, as_json: bool, strict: bool) -> int:
    """Check the topology in FILE for problems.

    A warning is almost certainly a mistake: a binding shadowed by another, an exchange that leads to no queue, an alternate
    exchange that does not exist. A notice may be intended, such as a queue that is reached only through the default exchange.
    """
    topology = Topology.from_definitions(file)
    findings = find_problems(topology)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print_findings(topology, findings)
    return 1 if strict and any(finding.level == "warning" for finding in findings) else 0


def _print_findings(topology: Topology, findings: list[Finding]) -> None:
    parts = {"vhost": topology.vhosts, "exchange": topology.exchanges, "queue": topology.queues, "binding": topology.bindings}
    show(", ".join(count(len(entries), noun) for noun, entries in parts.items()))
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for _ in range(3):
        grid.add_column(overflow="fold")
    for finding in findings:
        vhost = "" if finding.vhost == "/" else f" (vhost {finding.vhost})"
        grid.add_row(
            Text(finding.level, LEVEL_STYLES[finding.level]),
            finding.kind,
            Text(finding.subject + vhost),
            Text(finding.message),
        )
    if findings:
        show(grid)
    warnings = sum(finding.level == "warning" for finding in findings)
    notices = len(findings) - warnings
    show(f"{count(warnings, 'warning')}, {count(notices, 'notice')}" if findings else "No problems found.")
