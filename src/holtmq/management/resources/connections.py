"""Client connections."""

from __future__ import annotations

from typing import Any

from holtmq.errors import ConnectionForcedError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.listing import Items
from holtmq.management.node import ConnectedClient
from holtmq.management.operations import CHARTS, LISTING, NO_CONTENT, Call, Outcome, api
from holtmq.management.views import channel_view, connection_view


@api.collection("/api/connections", query=(*LISTING, *CHARTS))
def connections(call: Call) -> Any:
    """List all connections, or the user's own if it lacks the tag monitoring."""
    return _list(call, call.clients())


@api.collection("/api/vhosts/{vhost}/connections")
def connections_of_vhost(call: Call) -> Any:
    """List the connections to a vhost."""
    vhost = call.vhost
    return _list(call, [client for client in call.clients() if client.session and client.session.vhost is vhost])


@api.collection("/api/connections/username/{user}")
def connections_of_user(call: Call) -> Any:
    """List the connections of a user."""
    return _list(call, _of_user(call))


@api.add("DELETE", "/api/connections/username/{user}")
def close_connections_of_user(call: Call) -> Outcome:
    """Close all connections of a user."""
    for client in _of_user(call):
        _close(call, client)
    return NO_CONTENT


@api.get("/api/connections/{connection}", query=CHARTS)
def connection(call: Call) -> dict[str, Any]:
    """Return a connection."""
    return connection_view(_find(call), call.statistics, call.span("data_rates"))


@api.add("DELETE", "/api/connections/{connection}")
def close_connection(call: Call) -> Outcome:
    """Close a connection. The client receives the text of the header X-Reason."""
    _close(call, _find(call))
    return NO_CONTENT


@api.collection("/api/connections/{connection}/channels")
def channels_of_connection(call: Call) -> Any:
    """List the channels of a connection."""
    client = _find(call)
    assert client.session is not None
    return Items(list(client.session.channels.values()), lambda channel: channel_view(channel, client, call.statistics))


def _list(call: Call, clients: list[ConnectedClient]) -> Items[ConnectedClient]:
    span = call.span("data_rates")
    return Items(clients, lambda client: connection_view(client, call.statistics, span), lambda client: (client.name,))


def _of_user(call: Call) -> list[ConnectedClient]:
    name = call.path["user"]
    if name != call.caller.user.name:
        call.caller.require(Need.MONITORING)
    return [client for client in call.clients() if client.session and client.session.user.name == name]


def _find(call: Call) -> ConnectedClient:
    for client in call.clients():
        if client.name == call.path["connection"]:
            return client
    raise NotFoundError(f"no connection {call.path['connection']!r}")


def _close(call: Call, client: ConnectedClient) -> None:
    if client.session is not None and client.session.user.name != call.caller.user.name:
        call.caller.require(Need.ADMINISTRATOR)
    reason = call.headers.get("x-reason", "Closed via management plugin")
    call.node.begin_turn()
    client.close(ConnectionForcedError(reason[:200]))
