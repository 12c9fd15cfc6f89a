"""Exchanges: list, declare and delete them, publish to them, and explain the route of a message."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, NotFoundError, StoreError
from holtmq.management.listing import Items
from holtmq.management.operations import CHARTS, LISTING, NO_CONTENT, OBJECT, Call, Outcome, api, created
from holtmq.management.resources.bindings import LISTED_BINDINGS, implicit
from holtmq.management.slices import beside_the_loop, finish
from holtmq.management.views import binding_view, exchange_view
from holtmq.routing.draft import explain_with, within_reach
from holtmq.table import FieldValue, describe
from holtmq.topology import DEFAULT_EXCHANGE, Binding, Exchange
from holtmq.topology.definitions_file import Fields
from holtmq.topology.registry import refuse_default_exchange
from holtmq.wire.content import NAMES, encode_properties, make_content

DEFAULT_IN_PATHS = "amq.default"
"""The name of the default exchange in a path."""
LAST_SECOND = 253_402_300_799
DECLARATION = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "durable": {"type": "boolean"},
        "auto_delete": {"type": "boolean"},
        "internal": {"type": "boolean"},
        "arguments": {"type": "object"},
    },
}
PUBLICATION = {
    "type": "object",
    "required": ["properties", "routing_key", "payload", "payload_encoding"],
    "properties": {
        "properties": {"type": "object"},
        "routing_key": {"type": "string"},
        "payload": {"type": "string"},
        "payload_encoding": {"enum": ["string", "base64"]},
    },
}
QUESTION = {
    "type": "object",
    "required": ["routing_key"],
    "properties": {
        "routing_key": {"type": "string"},
        "headers": {"type": "object"},
        "drafts": {
            "type": "array",
            "description": "Bindings to assume in addition to the existing ones.",
            "items": {"type": "object", "required": ["source", "destination"]},
        },
    },
}


@api.collection("/api/exchanges", query=(*LISTING, *CHARTS))
def exchanges(call: Call) -> Any:
    """List the exchanges of all vhosts that the user can access."""
    return _list(call)


@api.collection("/api/exchanges/{vhost}", query=(*LISTING, *CHARTS))
def exchanges_of_vhost(call: Call) -> Any:
    """List the exchanges of a vhost."""
    return _list(call)


def _list(call: Call) -> Items[tuple[Exchange, VirtualHost]]:
    span = call.span("msg_rates")
    found = [
        (exchange, vhost) for vhost in call.vhosts for exchange in (_default(vhost), *vhost.router.registry.exchanges.values())
    ]
    return Items(
        found,
        lambda each: exchange_view(*each, call.statistics, span),
        lambda each: (each[0].name,),
        lambda each: (each[1].name, each[0].name),
    )


def _default(vhost: VirtualHost) -> Exchange:
    return Exchange(DEFAULT_EXCHANGE, "direct", vhost=vhost.name)


@api.get("/api/exchanges/{vhost}/{name}", query=CHARTS)
async def exchange(call: Call) -> dict[str, Any]:
    """Return an exchange with the message rates from publishers and to queues."""
    vhost, found = _find(call)
    view = exchange_view(found, vhost, call.statistics, call.span("msg_rates"))
    traffic = await finish(vhost.traffic())
    pairs = [queue for source, queue in traffic.pairs if source == found.name]
    view["incoming"] = []
    view["outgoing"] = [
        {"queue": {"name": queue, "vhost": vhost.name}, "stats": {"publish_details": {"rate": rate}}}
        for queue in pairs
        if (rate := call.statistics.rate(0, "pair", vhost.name, found.name, queue))
    ]
    return view


@api.add("PUT", "/api/exchanges/{vhost}/{name}", body=DECLARATION, answers={201: None, 204: None})
def declare_exchange(call: Call) -> Outcome:
    """Declare an exchange. An existing exchange must have the same properties."""
    vhost, fields = call.vhost, call.fields()
    name = _name(call)
    refuse_default_exchange(name)
    declared = Exchange(
        name,
        fields.text("type", "direct"),
        fields.flag("durable", default=True),
        fields.flag("auto_delete", default=False),
        fields.flag("internal", default=False),
        fields.table("arguments"),
        vhost.name,
    )
    is_new = name not in vhost.router.registry.exchanges
    with call.channel(vhost) as (channel, _):
        channel.declarer.declare_exchange(declared)
    return created(is_new=is_new)


@api.add("DELETE", "/api/exchanges/{vhost}/{name}", query=("if-unused",))
def delete_exchange(call: Call) -> Outcome:
    """Delete an exchange and its bindings. With `if-unused=true`, only an exchange without bindings is deleted."""
    vhost, found = _find(call)
    with call.channel(vhost) as (channel, _):
        channel.declarer.delete_exchange(found.name, if_unused=call.flag("if-unused"))
    return NO_CONTENT


@api.collection("/api/exchanges/{vhost}/{name}/bindings/source", answers=LISTED_BINDINGS)
def bindings_from_exchange(call: Call) -> Items[str] | Items[Binding]:
    """List the bindings whose source is an exchange."""
    vhost, found = _find(call)
    if found.name == DEFAULT_EXCHANGE:
        return Items(list(vhost.queues), lambda queue: binding_view(implicit(vhost.name, queue)))
    return Items(list(vhost.router.registry.bindings_from(found.name)), binding_view)


@api.collection("/api/exchanges/{vhost}/{name}/bindings/destination", answers=LISTED_BINDINGS)
def bindings_to_exchange(call: Call) -> Items[Binding]:
    """List the bindings whose destination is an exchange."""
    vhost, found = _find(call)
    return Items(list(vhost.router.registry.bindings_to("exchange", found.name)), binding_view)


@api.add("POST", "/api/exchanges/{vhost}/{name}/publish", body=PUBLICATION, answers={200: OBJECT})
async def publish(call: Call) -> dict[str, Any]:
    """Publish a message. The response says whether it was routed to a queue."""
    vhost, found = _find(call)
    fields = call.fields()
    routing_key, encoding = fields.text("routing_key"), fields.text("payload_encoding", "string")
    body = _payload(fields.text("payload"), encoding)
    raw = encode_properties(_properties(call.mapping().get("properties", {})))
    if call.node.blocked_for is not None:
        raise StoreError(f"publishers are blocked: {call.node.blocked_reason}")
    with call.channel(vhost) as (channel, inbox):
        channel.select_confirms()
        publication = channel.publication(found.name, routing_key, is_mandatory=True)
        publication.publish(raw, [make_content(raw, body)])
        await finish(channel.finish(), call.node.begin_turn)
    return {"routed": not inbox.returned and not inbox.refused}


@api.add("POST", "/api/exchanges/{vhost}/{name}/explain", body=QUESTION, answers={200: OBJECT})
async def explain(call: Call) -> dict[str, Any]:
    """Explain which queues a message would reach, and why. `drafts` are bindings to assume in addition."""
    vhost, found = _find(call)
    fields = call.fields()
    routing_key, headers = fields.text("routing_key"), fields.table("headers")
    drafts = [_draft(draft, place, vhost) for place, draft in enumerate(_drafts(call.mapping()))]
    if drafts:
        topology = within_reach(vhost.router, found.name, drafts)
        explanation = await beside_the_loop(explain_with, topology, drafts, found.name, routing_key, headers)
    else:
        explanation = await finish(vhost.router.explain_in_steps(found.name, routing_key, headers))
    return await beside_the_loop(explanation.to_dict)


def _drafts(document: Mapping[str, Any]) -> list[Any]:
    drafts = document.get("drafts", [])
    if not isinstance(drafts, list):
        raise DefinitionsError("body.drafts", f"expected an array of bindings, got {describe(drafts)}")
    return drafts


def _draft(draft: object, place: int, vhost: VirtualHost) -> Binding:
    fields = Fields(draft, f"body.drafts[{place}]")
    binding = Binding(
        fields.text("source"),
        fields.text("destination"),
        fields.text("routing_key", ""),
        fields.table("arguments"),
        fields.text("destination_type", "queue"),  # type: ignore[arg-type]  # Binding checks it
        vhost.name,
    )
    vhost.router.registry.require_ends(binding)
    return binding


def _name(call: Call) -> str:
    name = call.path["name"]
    return DEFAULT_EXCHANGE if name == DEFAULT_IN_PATHS else name


def _find(call: Call) -> tuple[VirtualHost, Exchange]:
    vhost, name = call.vhost, _name(call)
    if name == DEFAULT_EXCHANGE:
        return vhost, _default(vhost)
    if name not in vhost.router.registry.exchanges:
        raise NotFoundError(f"no exchange {name!r} in vhost {vhost.name!r}")
    return vhost, vhost.router.registry.exchanges[name]


def _payload(text: str, encoding: str) -> bytes:
    if encoding == "string":
        return text.encode()
    if encoding != "base64":
        raise DefinitionsError("body.payload_encoding", f"expected string or base64, got {encoding!r}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DefinitionsError("body.payload", f"expected base64, got {text[:40]!r}: {error}") from error


def _properties(given: object) -> dict[str, Any]:
    """Read the properties of a message from JSON. Refuse properties that AMQP does not define."""
    if given == []:  # RabbitMQ's form of an empty object
        given = {}
    fields = Fields(given, "body.properties")
    assert isinstance(given, Mapping)
    properties: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "headers":
                properties[name] = fields.table("headers")
            case "delivery_mode" | "priority":
                properties[name] = _number(name, value, 255)
            case "timestamp":
                properties[name] = datetime.fromtimestamp(_number(name, value, LAST_SECOND), UTC)
            case _ if name in NAMES:
                properties[name] = fields.text(name)
            case _:
                raise DefinitionsError("body.properties", f"expected properties among {', '.join(NAMES)}, got {name!r}")
    return properties


def _number(name: str, value: FieldValue, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise DefinitionsError(f"body.properties.{name}", f"expected a number from 0 to {most}, got {describe(value)}")
    return value
