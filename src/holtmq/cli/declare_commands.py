"""holtmq declare, delete, bind, unbind: the topology of a broker."""

from __future__ import annotations

import click

from holtmq.cli.http_client import Api, ApiError, api_options, argument_option, exchange_segment, table, vhost_option
from holtmq.cli.output import show

EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")


@click.group()
def declare() -> None:
    """Declare exchanges, queues and vhosts in a broker; what is there already must be the same."""


@declare.command("exchange")
@click.argument("name")
@click.option("--type", "type_", type=click.Choice(EXCHANGE_TYPES), default="direct", show_default=True)
@click.option("--durable/--transient", default=True, show_default=True, help="Whether it outlives the broker.")
@click.option("--auto-delete", is_flag=True, help="Goes with its last binding.")
@click.option("--internal", is_flag=True, help="Only other exchanges may send to it.")
@argument_option
@vhost_option
@api_options
def declare_exchange(
    api: Api, name: str, type_: str, arguments: tuple[str, ...], vhost: str, *, durable: bool, auto_delete: bool, internal: bool
) -> None:
    """Declare the exchange NAME."""
    body = {"type": type_, "durable": durable, "auto_delete": auto_delete, "internal": internal, "arguments": table(arguments)}
    api.call("PUT", "exchanges", vhost, name, body=body)
    show(f"exchange {name} declared")


@declare.command("queue")
@click.argument("name")
@click.option("--durable/--transient", default=True, show_default=True, help="Whether it outlives the broker.")
@click.option("--auto-delete", is_flag=True, help="Goes with its last consumer.")
@argument_option
@vhost_option
@api_options
def declare_queue(api: Api, name: str, arguments: tuple[str, ...], vhost: str, *, durable: bool, auto_delete: bool) -> None:
    """Declare the queue NAME, for example with --argument x-max-length=1000."""
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": table(arguments)}
    api.call("PUT", "queues", vhost, name, body=body)
    show(f"queue {name} declared")


@declare.command("vhost")
@click.argument("name")
@click.option("--description", default="", help="What it is for.")
@api_options
def declare_vhost(api: Api, name: str, description: str) -> None:
    """Add the vhost NAME."""
    api.call("PUT", "vhosts", name, body={"description": description})
    show(f"vhost {name} declared")


@click.group()
def delete() -> None:
    """Delete exchanges, queues and vhosts of a broker, or close connections."""


@delete.command("exchange")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only where nothing is bound to it.")
@vhost_option
@api_options
def delete_exchange(api: Api, name: str, vhost: str, *, if_unused: bool) -> None:
    """Delete the exchange NAME with its bindings."""
    api.call("DELETE", "exchanges", vhost, name, query={"if-unused": "true" if if_unused else None})
    show(f"exchange {name} deleted")


@delete.command("queue")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only where nobody consumes.")
@click.option("--if-empty", is_flag=True, help="Only where no message is in it.")
@vhost_option
@api_options
def delete_queue(api: Api, name: str, vhost: str, *, if_unused: bool, if_empty: bool) -> None:
    """Delete the queue NAME with its messages and bindings."""
    query = {"if-unused": "true" if if_unused else None, "if-empty": "true" if if_empty else None}
    api.call("DELETE", "queues", vhost, name, query=query)
    show(f"queue {name} deleted")


@delete.command("vhost")
@click.argument("name")
@api_options
def delete_vhost(api: Api, name: str) -> None:
    """Delete the vhost NAME with all that is in it."""
    api.call("DELETE", "vhosts", name)
    show(f"vhost {name} deleted")


@delete.command("connection")
@click.argument("name")
@api_options
def close_connection(api: Api, name: str) -> None:
    """Close the connection NAME, as `holtmq list connections` shows it."""
    api.call("DELETE", "connections", name)
    show(f"connection {name} closed")


kind_option = click.option(
    "--to", "kind", type=click.Choice(["queue", "exchange"]), default="queue", show_default=True, help="What DESTINATION is."
)


@click.command()
@click.argument("source")
@click.argument("destination")
@click.argument("key", default="")
@kind_option
@argument_option
@vhost_option
@api_options
def bind(api: Api, source: str, destination: str, key: str, kind: str, arguments: tuple[str, ...], vhost: str) -> None:
    """Bind the exchange SOURCE to DESTINATION by the routing key or pattern KEY."""
    body = {"routing_key": key, "arguments": table(arguments)}
    api.call("POST", "bindings", vhost, "e", exchange_segment(source), kind[0], destination, body=body)
    show(f"{destination} bound to {source} by {key!r}")


@click.command()
@click.argument("source")
@click.argument("destination")
@click.argument("key", default="")
@kind_option
@argument_option
@vhost_option
@api_options
def unbind(api: Api, source: str, destination: str, key: str, kind: str, arguments: tuple[str, ...], vhost: str) -> None:
    """Remove the binding of DESTINATION to the exchange SOURCE with this KEY and these arguments."""
    between = ("bindings", vhost, "e", exchange_segment(source), kind[0], destination)
    bindings = [each for each in api.get(*between) if each["routing_key"] == key]
    wanted = table(arguments)
    found = [each for each in bindings if each["arguments"] == wanted]
    if not found:
        others = "; ".join(str(each["arguments"]) for each in bindings)
        known = f"bound by it with arguments {others}" if bindings else "nothing is bound by it"
        raise ApiError(f"no binding of {destination!r} to {source!r} by {key!r} with arguments {wanted}: {known}")
    api.call("DELETE", *between, found[0]["properties_key"])
    show(f"{destination} unbound from {source} by {key!r}")
