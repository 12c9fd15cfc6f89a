"""holtmq list, holtmq status: the objects of a broker and its state."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import click
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.http_client import Api, api_options
from holtmq.cli.options import json_option
from holtmq.cli.output import print_json, show
from holtmq.client.http_api import ApiError

COLUMNS = {
    "queues": ("name", "messages_ready", "messages_unacknowledged", "consumers", "message_stats.publish_details.rate"),
    "exchanges": ("name", "type", "durable", "message_stats.publish_in_details.rate", "arguments"),
    "bindings": ("source", "destination_type", "destination", "routing_key", "arguments", "created_at", "metadata"),
    "connections": ("name", "user", "vhost", "state", "channels", "user_provided_name"),
    "channels": ("name", "user", "consumer_count", "messages_unacknowledged", "prefetch_count"),
    "consumers": ("queue.name", "consumer_tag", "ack_required", "prefetch_count", "channel_details.name"),
    "vhosts": ("name", "description", "messages"),
    "users": ("name", "tags"),
    "permissions": ("user", "vhost", "configure", "write", "read"),
    "topic-permissions": ("user", "vhost", "exchange", "write", "read"),
    "policies": ("name", "vhost", "pattern", "apply-to", "definition", "priority"),
    "parameters": ("component", "vhost", "name", "value"),
    "nodes": ("name", "uptime", "mem_used", "fd_used"),
}
IN_VHOSTS = ("queues", "exchanges", "bindings", "policies", "consumers")
HEADINGS = {"message_stats.publish_details.rate": "in/s", "message_stats.publish_in_details.rate": "in/s"}


@click.command("list")
@click.argument("things", type=click.Choice(list(COLUMNS)))
@click.argument("columns", nargs=-1)
@api_options
@click.option("--vhost", "-V", help="Only objects in this vhost.")
@click.option("--name", help="Only objects whose name contains this text.")
@click.option("--sort", help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="Sort in descending order.")
@json_option
def list_(
    things: str, columns: tuple[str, ...], api: Api, vhost: str | None, name: str | None, sort: str | None,
    *, reverse: bool, as_json: bool,
) -> None:  # fmt: skip
    """List the objects of a broker.

    COLUMNS selects the columns to show; a dot selects a field of a nested object, as in message_stats.publish.
    """
    path = (things, vhost) if vhost is not None and things in IN_VHOSTS else (things,)
    items = api.get(*path, name=name, sort=sort, sort_reverse="true" if reverse else None)
    if vhost is not None and things not in IN_VHOSTS:
        items = [item for item in items if item.get("vhost") == vhost]
    if as_json:
        print_json([{column: value_of(item, column) for column in columns} for item in items] if columns else items)
        return
    chosen = columns or COLUMNS[things]
    rows = [[value_of(item, column) for column in chosen] for item in items]
    show_rows([HEADINGS.get(column, column) for column in chosen], rows, f"No {things}.")


def show_rows(headings: list[str], rows: list[list[Any]], empty: str) -> None:
    """Print a table, or the text `empty` if it has no rows."""
    if not rows:
        show(empty)
        return
    grid = Grid()
    for place, heading in enumerate(headings):
        is_number = all(isinstance(row[place], int | float) and not isinstance(row[place], bool) for row in rows)
        grid.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(_shown(value)) for value in row))
    show(grid)


def value_of(item: dict[str, Any], column: str) -> Any:
    """Return the field that a dotted name selects, or None if there is no such field."""
    value: Any = item
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case list():
            return ", ".join(map(_shown, value))
        case dict():
            return ", ".join(f"{name}={_shown(each)}" for name, each in value.items())
        case _:
            return str(value)


@click.command()
@api_options
@json_option
def status(api: Api, *, as_json: bool) -> None:
    """Show the version, listeners, totals and message rates of a broker, or what a standby waits for."""
    try:
        overview = api.get("overview")
    except ApiError as error:
        if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        _show_standby(str(error), as_json=as_json)
        return
    if as_json:
        print_json({"role": "active", **overview})
        return
    totals, lengths, stats = overview["object_totals"], overview["queue_totals"], overview["message_stats"]
    listeners = ", ".join(f"{each['protocol']} {each['ip_address']}:{each['port']}" for each in overview["listeners"])
    grid = Grid.grid(padding=(0, 3, 0, 0))
    for name, value in (
        ("broker", f"{overview['product_name']} {overview['product_version']}, {overview['cluster_name']}"),
        ("role", "active"),
        ("listeners", listeners),
        ("connections, channels", f"{totals['connections']:,}, {totals['channels']:,}"),
        ("exchanges, queues, consumers", f"{totals['exchanges']:,}, {totals['queues']:,}, {totals['consumers']:,}"),
        ("messages ready, unacknowledged", f"{lengths['messages_ready']:,}, {lengths['messages_unacknowledged']:,}"),
        ("published", f"{stats['publish']:,}, {stats['publish_details']['rate']:,.1f}/s"),
        ("delivered", f"{stats['deliver_get']:,}, {stats['deliver_get_details']['rate']:,.1f}/s"),
    ):
        grid.add_row(Text(name), Text(value))
    show(grid)


def _show_standby(reason: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"role": "standby", "reason": reason})
    else:
        show(reason)
