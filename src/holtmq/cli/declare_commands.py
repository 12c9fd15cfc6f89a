"""holtmq declare, delete, bind, unbind: the topology of a broker."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import click

from holtmq.cli.http_client import Api, api_options, exchange_segment
from holtmq.cli.options import argument_option, parse_table, vhost_option
from holtmq.cli.output import show
from holtmq.cli.super_stream_options import super_stream_options
from holtmq.client.http_api import ApiError
from holtmq.routing.explanation_text import count
from holtmq.routing.router import MATCHERS
from holtmq.table import to_plain
from holtmq.topology import Exchange, Queue
from holtmq.topology.super_stream import SuperStream

durable_option = click.option(
    "--durable/--transient", default=True, show_default=True, help="Whether it survives a restart of the broker."
)


@click.group()
def declare() -> None:
    """Declare exchanges, queues, super streams and vhosts on a broker.

    Declaring something that exists has no effect; it is an error if its properties differ.
    """


@declare.command("exchange")
@click.argument("name")
@click.option("--type", "type_", type=click.Choice(tuple(MATCHERS)), default="direct", show_default=True, help="Exchange type.")
@durable_option
@click.option("--auto-delete", is_flag=True, help="Delete the exchange when its last binding is removed.")
@click.option("--internal", is_flag=True, help="Accept messages from other exchanges only, not from publishers.")
@argument_option
@vhost_option
@api_options
def declare_exchange(
    api: Api, name: str, type_: str, arguments: tuple[str, ...], vhost: str, *, durable: bool, auto_delete: bool, internal: bool
) -> None:
    """Declare the exchange NAME."""
    body = {
        "type": type_,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": parse_table(arguments),
    }
    _show_declared(f"Exchange {name}", is_new=api.put("exchanges", vhost, name, body=body))


@declare.command("queue")
@click.argument("name")
@durable_option
@click.option("--auto-delete", is_flag=True, help="Delete the queue when its last consumer is cancelled.")
@argument_option
@vhost_option
@api_options
def declare_queue(api: Api, name: str, arguments: tuple[str, ...], vhost: str, *, durable: bool, auto_delete: bool) -> None:
    """Declare the queue NAME, for example with --argument x-max-length=1000."""
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": parse_table(arguments)}
    _show_declared(f"Queue {name}", is_new=api.put("queues", vhost, name, body=body))


@declare.command("super-stream")
@super_stream_options
@vhost_option
@api_options
def declare_super_stream(api: Api, stream: SuperStream) -> None:
    """Declare the super stream NAME: an x-consistent-hash exchange and its partitions, the streams NAME-0, NAME-1 and so on.

    Publish to the exchange NAME. Messages with the same routing key go to the same partition. Declaring NAME with more
    partitions adds the missing ones, to which a part of the routing keys moves.
    """
    stream.require_only_partitions(_bound(api, stream.name, stream.vhost))
    made = [api.put("exchanges", stream.vhost, stream.name, body=_settings(stream.exchange))]
    made += [api.put("queues", stream.vhost, each.name, body=_settings(each)) for each in stream.queues]
    for each in stream.bindings:
        body = {"routing_key": each.routing_key}
        api.call("POST", "bindings", stream.vhost, "e", stream.name, "q", each.destination, body=body)
    _show_declared(f"Super stream {stream.name} with {count(stream.partitions, 'partition')}", is_new=any(made))


def _bound(api: Api, exchange: str, vhost: str) -> list[str]:
    """Return what is bound to an exchange, which need not exist."""
    try:
        return [each["destination"] for each in api.get("exchanges", vhost, exchange, "bindings", "source")]
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return []
        raise


def _settings(declared: Exchange | Queue) -> dict[str, Any]:
    type_ = {"type": declared.type} if isinstance(declared, Exchange) else {}
    return {**type_, "durable": declared.durable, "arguments": to_plain(declared.arguments)}


@declare.command("vhost")
@click.argument("name")
@click.option("--description", default="", help="Description of the vhost.")
@api_options
def declare_vhost(api: Api, name: str, description: str) -> None:
    """Declare the vhost NAME."""
    _show_declared(f"Vhost {name}", is_new=api.put("vhosts", name, body={"description": description}))


def _show_declared(what: str, *, is_new: bool) -> None:
    show(f"{what} created." if is_new else f"{what} already exists.")


@click.group()
def delete() -> None:
    """Delete exchanges, queues and vhosts of a broker, or close connections."""


@delete.command("exchange")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if the exchange has no bindings.")
@vhost_option
@api_options
def delete_exchange(api: Api, name: str, vhost: str, *, if_unused: bool) -> None:
    """Delete the exchange NAME and its bindings."""
    api.call("DELETE", "exchanges", vhost, name, query={"if-unused": "true" if if_unused else None})
    show(f"Exchange {name} deleted.")


@delete.command("queue")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if the queue has no consumers.")
@click.option("--if-empty", is_flag=True, help="Only if the queue has no messages.")
@vhost_option
@api_options
def delete_queue(api: Api, name: str, vhost: str, *, if_unused: bool, if_empty: bool) -> None:
    """Delete the queue NAME, its messages and its bindings."""
    query = {"if-unused": "true" if if_unused else None, "if-empty": "true" if if_empty else None}
    api.call("DELETE", "queues", vhost, name, query=query)
    show(f"Queue {name} deleted.")


@delete.command("vhost")
@click.argument("name")
@api_options
def delete_vhost(api: Api, name: str) -> None:
    """Delete the vhost NAME and everything in it."""
    api.call("DELETE", "vhosts", name)
    show(f"Vhost {name} deleted.")


@delete.command("connection")
@click.argument("name")
@api_options
def close_connection(api: Api, name: str) -> None:
    """Close the connection NAME, as shown by `holtmq list connections`."""
    api.call("DELETE", "connections", name)
    show(f"Connection {name} closed.")


kind_option = click.option(
    "--to", "kind", type=click.Choice(["queue", "exchange"]), default="queue", show_default=True, help="Type of DESTINATION."
)


@click.command()
@click.argument("source")
@click.argument("destination")
@click.argument("key", default="")
@kind_option
@argument_option
@click.option(
    "--metadata",
    multiple=True,
    metavar="NAME=VALUE",
    help="Note to keep with the binding, such as owner=sales; it has no effect on routing. Can be repeated.",
)
@vhost_option
@api_options
def bind(
    api: Api, source: str, destination: str, key: str, kind: str, arguments: tuple[str, ...], metadata: tuple[str, ...],
    vhost: str,
) -> None:  # fmt: skip
    """Bind DESTINATION to the exchange SOURCE with the routing key or pattern KEY."""
    body: dict[str, Any] = {"routing_key": key, "arguments": parse_table(arguments)}
    if metadata:
        body["metadata"] = parse_table(metadata)
    api.call("POST", "bindings", vhost, "e", exchange_segment(source), kind[0], destination, body=body)
    show(f"{kind.capitalize()} {destination} bound to exchange {source} with key {key!r}.")


@click.command()
@click.argument("source")
@click.argument("destination")
@click.argument("key", default="")
@kind_option
@argument_option
@vhost_option
@api_options
def unbind(api: Api, source: str, destination: str, key: str, kind: str, arguments: tuple[str, ...], vhost: str) -> None:
    """Remove the binding of DESTINATION to the exchange SOURCE that has this KEY and these arguments."""
    between = ("bindings", vhost, "e", exchange_segment(source), kind[0], destination)
    bindings = [each for each in api.get(*between) if each["routing_key"] == key]
    wanted = parse_table(arguments)
    found = [each for each in bindings if each["arguments"] == wanted]
    if not found:
        others = " and ".join(str(each["arguments"]) for each in bindings)
        known = f"it is bound with arguments {others}" if bindings else "there is no binding with this key"
        raise ApiError(f"no binding of {destination!r} to {source!r} with key {key!r} and arguments {wanted}; {known}")
    api.call("DELETE", *between, found[0]["properties_key"])
    show(f"{kind.capitalize()} {destination} unbound from exchange {source} with key {key!r}.")
