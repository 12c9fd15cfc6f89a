"""holtmq explain: why a message goes where it goes."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from holtmq.cli.explanation_view import explanation_view
from holtmq.cli.http_client import Api, ca_option, http_url_option
from holtmq.cli.options import (
    data_option,
    definitions_option,
    given_topology,
    header_option,
    json_option,
    parse_table,
    password_file_option,
    vhost_option,
)
from holtmq.cli.output import print_json, show
from holtmq.database_url import shown_path
from holtmq.routing import Router
from holtmq.topology import Topology

FIELDS = {
    "exchanges": ("name", "type", "durable", "auto_delete", "internal", "arguments", "vhost"),
    "queues": ("name", "durable", "auto_delete", "exclusive", "arguments", "vhost"),
    "bindings": ("source", "destination", "destination_type", "routing_key", "arguments", "vhost"),
    "policies": ("name", "pattern", "apply-to", "definition", "priority", "vhost"),
}
"""The fields of the HTTP API's objects that define a topology; the others are statistics."""


@click.command()
@click.argument("exchange")
@click.argument("key")
@header_option
@definitions_option
@data_option
@http_url_option
@ca_option
@password_file_option
@vhost_option
@json_option
def explain(
    exchange: str, key: str, headers: tuple[str, ...], definitions: Path | None, data: Path | str | None, http_url: str | None,
    ca: str | None, password_file: str | None, vhost: str, *, as_json: bool,
) -> None:  # fmt: skip
    """Explain where a message published to EXCHANGE with the routing key KEY goes, and why.

    Bindings that nearly match are shown with the reason why they do not.

    The topology comes from a definitions file, a HoltMQ file or database, or a running broker: use exactly one of
    --definitions, --data and --http-url.

    EXCHANGE is "" for the default exchange. The VALUE of a header is parsed as JSON if possible: true is a boolean, 1 an
    integer and '"1"' a string. Any other value is a string.
    """
    source = click.get_current_context().get_parameter_source("http_url")
    if source is not ParameterSource.COMMANDLINE and (definitions or data):
        http_url = None
    topology = _topology(definitions, data, Api(http_url, ca, password_file) if http_url else None, vhost)
    if vhost not in topology.vhosts:
        place = definitions or shown_path(data or "the broker")
        raise click.ClickException(f"no vhost {vhost!r} in {place}, expected one of {', '.join(topology.vhosts)}")
    explanation = Router(topology, vhost).explain(exchange, key, parse_table(headers))
    if as_json:
        print_json(explanation.to_dict())
    else:
        show(explanation_view(explanation))


def _topology(definitions: Path | None, data: Path | str | None, api: Api | None, vhost: str) -> Topology:
    if (definitions, data, api).count(None) != 2:
        raise click.UsageError("expected exactly one of --definitions, --data and --http-url")
    return given_topology(definitions, data) if api is None else _topology_of_broker(api, vhost)


def _topology_of_broker(api: Api, vhost: str) -> Topology:
    """Return everything in a vhost; the definitions of a broker contain only what is durable."""
    parts = {
        name: [
            {field: item[field] for field in fields} for item in api.get(name, vhost) if item.get("source", item.get("name"))
        ]
        for name, fields in FIELDS.items()
    }
    return Topology.from_definitions({**parts, "vhosts": [{"name": vhost}]})
