"""Virtual hosts."""

from __future__ import annotations

from typing import Any, TypeAlias

from holtmq.accounts import Permission
from holtmq.broker.definition_entries import read_vhost_metadata
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import ConnectionForcedError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.listing import Items
from holtmq.management.operations import NO_CONTENT, Call, Outcome, api, created
from holtmq.management.resources.users import AnyPermission, permission_items
from holtmq.management.slices import finish
from holtmq.management.statistics import (
    CONNECTION_COLUMNS,
    IN,
    LENGTHS,
    OUT,
    VHOST_COLUMNS,
    stats,
    vhost_numbers,
    with_deliver_get,
)
from holtmq.management.views import NODE
from holtmq.steps import Steps

VHOST = {
    "type": "object",
    "properties": {
        "description": {"type": "string"},
        "tags": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "tracing": {"type": "boolean"},
    },
}

Found: TypeAlias = tuple[VirtualHost, tuple[int, ...]]
"""A vhost with its numbers."""


@api.collection("/api/vhosts")
async def vhosts(call: Call) -> Items[Found]:
    """List the vhosts that the user can access, or all vhosts if it has the tag monitoring."""
    every = call.node.broker.vhosts
    seen = [vhost for name, vhost in every.items() if call.caller.sees_all_vhosts() or call.caller.may_enter(name)]
    found = [(vhost, await finish(vhost_numbers(vhost, call.node.clients))) for vhost in seen]
    return Items(found, lambda each: _view(call, *each), lambda each: (each[0].name,), lambda each: each[0].name)


@api.get("/api/vhosts/{vhost}")
async def vhost(call: Call) -> dict[str, Any]:
    """Return a vhost."""
    found = _find(call)
    return _view(call, found, await finish(vhost_numbers(found, call.node.clients)))


@api.add("PUT", "/api/vhosts/{vhost}", need=Need.ADMINISTRATOR, body=VHOST, answers={201: None, 204: None})
def add_vhost(call: Call) -> Outcome:
    """Create or update a vhost. Its creator gets all permissions in it."""
    broker, name = call.node.broker, call.path["vhost"]
    metadata = read_vhost_metadata(call.fields(), name)
    is_new = name not in broker.vhosts
    call.node.begin_turn()
    broker.add_vhost(name, metadata)
    if is_new:
        broker.set_permission(Permission(call.caller.user.name, name))
    return created(is_new=is_new)


@api.add("DELETE", "/api/vhosts/{vhost}", need=Need.ADMINISTRATOR)
async def delete_vhost(call: Call) -> Outcome:
    """Delete a vhost with everything in it, and close the connections to it."""
    found = _find(call)
    call.node.begin_turn()
    emptying = call.node.broker.remove_vhost(found.name)
    await finish(_close_clients(call, found), call.node.begin_turn)
    await finish(emptying, call.node.begin_turn)
    return NO_CONTENT


def _close_clients(call: Call, vhost: VirtualHost) -> Steps[None]:
    for client in list(call.node.clients):
        if client.session is not None and client.session.vhost is vhost:
            client.close(ConnectionForcedError(f"vhost {vhost.name!r} was deleted"))
            yield


@api.collection("/api/vhosts/{vhost}/permissions", need=Need.ADMINISTRATOR)
def permissions_in_vhost(call: Call) -> Items[AnyPermission]:
    """List the permissions in a vhost."""
    name = _find(call).name
    return permission_items(each for each in call.node.broker.authorization.permissions.values() if each.vhost == name)


@api.collection("/api/vhosts/{vhost}/topic-permissions", need=Need.ADMINISTRATOR)
def topic_permissions_in_vhost(call: Call) -> Items[AnyPermission]:
    """List the topic permissions in a vhost."""
    name = _find(call).name
    return permission_items(each for each in call.node.broker.authorization.topic_permissions.values() if each.vhost == name)


def _find(call: Call) -> VirtualHost:
    found = call.node.broker.vhosts.get(call.path["vhost"])
    if found is None:
        raise NotFoundError(f"no vhost {call.path['vhost']!r}")
    if not call.caller.sees_all_vhosts():
        call.caller.require_vhost(found.name)
    return found


def _view(call: Call, vhost: VirtualHost, values: tuple[int, ...]) -> dict[str, Any]:
    history = call.statistics.history("vhost", vhost.name)
    numbers = stats(VHOST_COLUMNS, values, history, call.span("msg_rates"))

    def part(columns: tuple[str, ...]) -> dict[str, Any]:
        return {name: numbers[name] for column in columns for name in (column, f"{column}_details")}

    return {
        "name": vhost.name,
        "description": vhost.metadata.get("description", ""),
        "tags": vhost.metadata.get("tags", []),
        "default_queue_type": vhost.metadata.get("default_queue_type", "classic"),
        "metadata": {"description": "", "tags": [], **vhost.metadata},
        "tracing": False,
        "cluster_state": {NODE: "running"},
        **part((*VHOST_COLUMNS[:LENGTHS], *CONNECTION_COLUMNS)),
        "message_stats": with_deliver_get(part((*IN, *OUT))),
    }
