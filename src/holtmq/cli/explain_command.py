"""holtmq explain: why a message goes where it goes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from holtmq.cli.explanation_view import explanation_view
from holtmq.cli.output import print_json, show
from holtmq.routing import Router
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_VHOST, Topology


@click.command()
@click.argument("exchange")
@click.argument("key")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of the message; may be repeated.")
@click.option(
    "--definitions",
    "file",
    type=click.Path(path_type=Path),
    help="The topology: a definitions file as RabbitMQ and HoltMQ export it.",
)
@click.option("--data", type=click.Path(path_type=Path), help="The topology: a HoltMQ file.")
@click.option("--url", help="The topology: that of a running broker, as in http://guest:guest@127.0.0.1:15672.")
@click.option("--vhost", default=DEFAULT_VHOST, show_default=True, help="The vhost to look at.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
def explain(
    exchange: str, key: str, headers: tuple[str, ...], file: Path | None, data: Path | None, url: str | None, vhost: str,
    *, as_json: bool,
) -> None:  # fmt: skip
    """Say why a message published to EXCHANGE under KEY goes where it goes, and what came close.

    The topology is that of a definitions file, of a HoltMQ file, or of a running broker.

    EXCHANGE may be "" for the default exchange. A header's VALUE is read as JSON where it is JSON, so that true and 1 are
    a boolean and an integer, and '"1"' is a string; everything else is a string as it stands.
    """
    topology = _topology(file, data, url, vhost)
    if vhost not in topology.vhosts:
        raise click.ClickException(
            f"no vhost {vhost!r} in {file or data or 'the broker'}, expected one of {', '.join(topology.vhosts)}"
        )
    explanation = Router(topology, vhost).explain(exchange, key, dict(map(parse_header, headers)))
    if as_json:
        print_json(explanation.to_dict())
    else:
        show(explanation_view(explanation))


def _topology_of_broker(url: str, vhost: str) -> Topology:
    """What is in a vhost now: more than its definitions, which are only of what lasts."""
    from holtmq.cli.http_client import Api  # which reads headers with `parse_header`

    parts = {name: Api(url).get(name, vhost) for name in ("exchanges", "queues", "bindings", "policies")}
    fields = {
        "exchanges": ("name", "type", "durable", "auto_delete", "internal", "arguments", "vhost"),
        "queues": ("name", "durable", "auto_delete", "exclusive", "arguments", "vhost"),
        "bindings": ("source", "destination", "destination_type", "routing_key", "arguments", "vhost"),
        "policies": ("name", "pattern", "apply-to", "definition", "priority", "vhost"),
    }
    known = {
        name: [{field: item[field] for field in fields[name]} for item in items if item.get("source", item.get("name"))]
        for name, items in parts.items()
    }
    return Topology.from_definitions({**known, "vhosts": [{"name": vhost}]})


def _topology(file: Path | None, data: Path | None, url: str | None, vhost: str) -> Topology:
    match file, data, url:
        case Path(), None, None:
            return Topology.from_definitions(file)
        case None, Path(), None:
            return Topology.load(data)
        case None, None, str():
            return _topology_of_broker(url, vhost)
    raise click.UsageError("expected one of --definitions, --data and --url")


def parse_header(text: str) -> tuple[str, FieldValue]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"a header must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
