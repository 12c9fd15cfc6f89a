"""Definitions: everything that outlives the broker in one document, out and in."""

from __future__ import annotations

from typing import Any

from holtmq.broker.definitions_export import export_definitions
from holtmq.broker.definitions_import import import_definitions
from holtmq.management.access import Need
from holtmq.management.operations import NO_CONTENT, OBJECT, Call, Outcome, api
from holtmq.management.resources.overview import SPOKEN_VERSION
from holtmq.topology import Topology

ADMIN = Need.ADMINISTRATOR
PRODUCT = {"rabbit_version": SPOKEN_VERSION, "rabbitmq_version": SPOKEN_VERSION, "product_name": "HoltMQ"}


@api.get("/api/definitions", need=ADMIN)
def definitions(call: Call) -> dict[str, Any]:
    """All vhosts, users, rights, parameters, policies, exchanges, queues and bindings that outlive the broker."""
    return {**PRODUCT, **export_definitions(call.node.broker)}


@api.get("/api/definitions/{vhost}", need=ADMIN)
def definitions_of_vhost(call: Call) -> dict[str, Any]:
    """The parameters, policies, exchanges, queues and bindings of a vhost."""
    return {**PRODUCT, **export_definitions(call.node.broker, call.vhost.name)}


@api.add("POST", "/api/definitions", need=ADMIN, body=OBJECT)
def add_definitions(call: Call) -> Outcome:
    """Add what a document says; nothing is removed, and one that cannot be used changes nothing."""
    topology = Topology.from_definitions(call.mapping())
    call.node.begin_turn()
    import_definitions(call.node.broker, topology)
    return NO_CONTENT


@api.add("POST", "/api/definitions/{vhost}", need=ADMIN, body=OBJECT)
def add_definitions_to_vhost(call: Call) -> Outcome:
    """Add what a document says to a vhost."""
    topology = Topology.from_definitions(call.mapping(), vhost=call.vhost.name)
    call.node.begin_turn()
    import_definitions(call.node.broker, topology)
    return NO_CONTENT
