"""Bindings from an exchange to a queue or to another exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast
from urllib.parse import quote, unquote

from holtmq.broker.channel import Channel
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, NotFoundError
from holtmq.management.listing import Items
from holtmq.management.operations import LISTING, NO_CONTENT, Call, Outcome, api
from holtmq.management.views import binding_view, properties_key
from holtmq.topology import DEFAULT_EXCHANGE, Binding, DestinationType

KINDS = {"q": "queue", "e": "exchange"}
DEFAULT_IN_PATHS = "amq.default"
METADATA = {"type": "object", "description": "Notes about the binding, for example its owner. Does not affect routing."}
NEW_BINDING = {
    "type": "object",
    "properties": {"routing_key": {"type": "string"}, "arguments": {"type": "object"}, "metadata": METADATA},
}
BINDING = {
    "type": "object",
    "properties": {
        "source": {"type": "string"},
        "vhost": {"type": "string"},
        "destination": {"type": "string"},
        "destination_type": {"enum": list(KINDS.values())},
        "routing_key": {"type": "string"},
        "arguments": {"type": "object"},
        "properties_key": {"type": "string", "description": "Identifies the binding in a path."},
        "created_at": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Time of creation (ISO 8601, UTC), or null if unknown.",
        },
        "metadata": METADATA,
    },
}
BINDINGS = {"type": "array", "items": BINDING}
BINDINGS_OR_PAGE = {
    "anyOf": [BINDINGS, {"type": "object", "required": ["items", "page_count"], "properties": {"items": BINDINGS}}]
}
LISTED_BINDINGS = {200: BINDINGS_OR_PAGE}


@api.collection("/api/bindings", query=(*LISTING, "default_exchange"), answers=LISTED_BINDINGS)
def bindings(call: Call) -> Any:
    """List the bindings of all vhosts that the user can access, including those of the default exchange."""
    return _list(call)


@api.collection("/api/bindings/{vhost}", query=(*LISTING, "default_exchange"), answers=LISTED_BINDINGS)
def bindings_of_vhost(call: Call) -> Any:
    """List the bindings of a vhost."""
    return _list(call)


Found: TypeAlias = Binding | tuple[str, str]
"""A binding, or the vhost and the queue of one of the default exchange, which is made when it is shown."""


def _list(call: Call) -> Items[Found]:
    found: list[Found] = []
    for vhost in call.vhosts:
        if call.query.get("default_exchange") != "false":
            found += [(vhost.name, queue) for queue in vhost.queues]
        found += vhost.router.registry.bindings()
    return Items(found, _view, _names, keys=SORT_KEYS)


def _view(found: Found) -> dict[str, Any]:
    return binding_view(found if isinstance(found, Binding) else implicit(*found))


def _names(found: Found) -> tuple[str, str]:
    return (found.source, found.destination) if isinstance(found, Binding) else (DEFAULT_EXCHANGE, found[1])


def implicit(vhost: str, queue: str) -> Binding:
    """Return the binding of a queue to the default exchange."""
    return Binding(DEFAULT_EXCHANGE, queue, queue, vhost=vhost)


SORT_KEYS: Mapping[str, Callable[[Found], Any]] = {
    "source": lambda found: _names(found)[0],
    "destination": lambda found: _names(found)[1],
    "routing_key": lambda found: found.routing_key if isinstance(found, Binding) else found[1],
}


@api.collection("/api/bindings/{vhost}/e/{source}/{kind}/{destination}", answers=LISTED_BINDINGS)
def bindings_between(call: Call) -> Items[Binding]:
    """List the bindings from an exchange to a queue (kind q) or to an exchange (kind e)."""
    _, found = _between(call)
    return Items(found, binding_view)


@api.add("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}", body=NEW_BINDING, answers={201: None})
def bind(call: Call) -> Outcome:
    """Bind a queue (kind q) or an exchange (kind e) to an exchange. An existing binding stays unchanged."""
    vhost, fields = call.vhost, call.fields()
    kind, source, destination = _ends(call)
    binding = Binding(
        source,
        destination,
        fields.text("routing_key", ""),
        fields.table("arguments"),
        kind,
        vhost.name,
        metadata=fields.table("metadata"),
    )
    with call.channel(vhost) as (channel, _):
        _bind(channel, binding)
    return Outcome(201, quote(properties_key(binding), safe="%~"))


@api.get("/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", answers={200: BINDING})
def binding(call: Call) -> dict[str, Any]:
    """Return a binding, identified by its properties_key."""
    return binding_view(_find(call))


@api.add("DELETE", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}")
def unbind(call: Call) -> Outcome:
    """Delete a binding, identified by its properties_key."""
    found = _find(call)
    with call.channel(call.vhost) as (channel, _):
        _unbind(channel, found)
    return NO_CONTENT


def _bind(channel: Channel, binding: Binding) -> None:
    call = channel.declarer.bind_queue if binding.is_to_queue else channel.declarer.bind_exchange
    call(binding.destination, binding.source, binding.routing_key, binding.arguments, binding.metadata)


def _unbind(channel: Channel, binding: Binding) -> None:
    call = channel.declarer.unbind_queue if binding.is_to_queue else channel.declarer.unbind_exchange
    call(binding.destination, binding.source, binding.routing_key, binding.arguments)


def _ends(call: Call) -> tuple[DestinationType, str, str]:
    kind = KINDS.get(call.path["kind"])
    if kind is None:
        raise DefinitionsError("path", f"expected q (queue) or e (exchange) as the destination type, got {call.path['kind']!r}")
    source, destination = call.path["source"], call.path["destination"]
    source = DEFAULT_EXCHANGE if source == DEFAULT_IN_PATHS else source
    destination = DEFAULT_EXCHANGE if kind == "exchange" and destination == DEFAULT_IN_PATHS else destination
    return cast("DestinationType", kind), source, destination


def _between(call: Call) -> tuple[VirtualHost, list[Binding]]:
    vhost, (kind, source, destination) = call.vhost, _ends(call)
    registry = vhost.router.registry
    if source != DEFAULT_EXCHANGE and source not in registry.exchanges:
        raise NotFoundError(f"no exchange {source!r} in vhost {vhost.name!r}")
    if destination not in (registry.queues if kind == "queue" else {**registry.exchanges, DEFAULT_EXCHANGE: None}):
        raise NotFoundError(f"no {kind} {destination!r} in vhost {vhost.name!r}")
    if source == DEFAULT_EXCHANGE:
        return vhost, [Binding(source, destination, destination, vhost=vhost.name)] if kind == "queue" else []
    return vhost, [binding for binding in registry.bindings_to(kind, destination) if binding.source == source]


def _find(call: Call) -> Binding:
    """Find the binding by its properties_key, or by the decoded form of it: some clients do not encode the key in a path."""
    _, found = _between(call)
    for decode in (lambda key: key, unquote):
        for binding in found:
            if decode(properties_key(binding)) == call.path["key"]:
                return binding
    source, destination = call.path["source"], call.path["destination"]
    raise NotFoundError(f"no binding from {source!r} to {destination!r} with properties_key {call.path['key']!r}")
