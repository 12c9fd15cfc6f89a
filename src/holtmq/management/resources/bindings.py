"""Bindings, between an exchange and a queue or another exchange."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote, unquote

from holtmq.broker.channel import Channel
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, NotFoundError
from holtmq.management.operations import NO_CONTENT, Call, Outcome, api
from holtmq.management.views import binding_view, properties_key
from holtmq.topology import DEFAULT_EXCHANGE, Binding, DestinationType

KINDS = {"q": "queue", "e": "exchange"}
DEFAULT_IN_PATHS = "amq.default"
BINDING = {
    "type": "object",
    "properties": {"routing_key": {"type": "string"}, "arguments": {"type": "object"}},
}


@api.collection("/api/bindings")
def bindings(call: Call) -> Any:
    """The bindings in all vhosts that the caller may enter, those of the default exchange included."""
    return _list(call)


@api.collection("/api/bindings/{vhost}")
def bindings_of_vhost(call: Call) -> Any:
    """The bindings in a vhost."""
    return _list(call)


def _list(call: Call) -> Any:
    listing = call.listing
    found = [binding for vhost in call.vhosts for binding in (*_implicit(vhost), *vhost.router.registry.bindings())]
    matched = [each for each in found if listing.matches(each.source) or listing.matches(each.destination)]
    return listing.apply([binding_view(binding) for binding in matched], len(found))


def _implicit(vhost: VirtualHost) -> list[Binding]:
    return [Binding(DEFAULT_EXCHANGE, name, name, vhost=vhost.name) for name in sorted(vhost.queues)]


@api.collection("/api/bindings/{vhost}/e/{source}/{kind}/{destination}")
def bindings_between(call: Call) -> list[dict[str, Any]]:
    """The bindings from an exchange to a queue (kind q) or an exchange (kind e)."""
    _, found = _between(call)
    return [binding_view(binding) for binding in found]


@api.add("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}", body=BINDING, answers={201: None})
def bind(call: Call) -> Outcome:
    """Bind an exchange to a queue (kind q) or an exchange (kind e)."""
    vhost, fields = call.vhost, call.fields()
    kind, source, destination = _ends(call)
    binding = Binding(source, destination, fields.text("routing_key", ""), fields.table("arguments"), kind, vhost.name)
    with call.channel(vhost) as (channel, _):
        _bind(channel, binding)
    return Outcome(201, quote(properties_key(binding), safe="%~"))


@api.get("/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}")
def binding(call: Call) -> dict[str, Any]:
    """One binding, by its properties_key."""
    return binding_view(_find(call))


@api.add("DELETE", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}")
def unbind(call: Call) -> Outcome:
    """Remove a binding, by its properties_key."""
    found = _find(call)
    with call.channel(call.vhost) as (channel, _):
        _unbind(channel, found)
    return NO_CONTENT


def _bind(channel: Channel, binding: Binding) -> None:
    call = channel.declarer.bind_queue if binding.is_to_queue else channel.declarer.bind_exchange
    call(binding.destination, binding.source, binding.routing_key, binding.arguments)


def _unbind(channel: Channel, binding: Binding) -> None:
    call = channel.declarer.unbind_queue if binding.is_to_queue else channel.declarer.unbind_exchange
    call(binding.destination, binding.source, binding.routing_key, binding.arguments)


def _ends(call: Call) -> tuple[DestinationType, str, str]:
    kind = KINDS.get(call.path["kind"])
    if kind is None:
        raise DefinitionsError("path", f"expected q or e for the kind of the destination, got {call.path['kind']!r}")
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
    """By its key as it stands or, for clients that do not encode it once more, as it is after a path was decoded."""
    _, found = _between(call)
    for spelled in (lambda key: key, unquote):
        for binding in found:
            if spelled(properties_key(binding)) == call.path["key"]:
                return binding
    raise NotFoundError(f"no binding with properties_key {call.path['key']!r} between the two")
