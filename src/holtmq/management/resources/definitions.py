"""Export and import of definitions: all durable objects of the broker, without messages."""

from __future__ import annotations

from typing import Any

from holtmq.broker.definition_entries import hash_passwords
from holtmq.broker.definitions_export import export_definitions
from holtmq.broker.definitions_import import import_definitions
from holtmq.compatibility import RABBITMQ_VERSION
from holtmq.management.access import Need
from holtmq.management.operations import NO_CONTENT, OBJECT, Call, Outcome, api
from holtmq.topology import Topology

ADMIN = Need.ADMINISTRATOR
PRODUCT = {"rabbit_version": RABBITMQ_VERSION, "rabbitmq_version": RABBITMQ_VERSION, "product_name": "HoltMQ"}


@api.get("/api/definitions", need=ADMIN)
def definitions(call: Call) -> dict[str, Any]:
    """Export all vhosts, users, permissions, parameters, policies, and durable exchanges, queues and bindings."""
    return {**PRODUCT, **export_definitions(call.node.broker)}


@api.get("/api/definitions/{vhost}", need=ADMIN)
def definitions_of_vhost(call: Call) -> dict[str, Any]:
    """Export the parameters, policies, and durable exchanges, queues and bindings of a vhost."""
    return {**PRODUCT, **export_definitions(call.node.broker, call.vhost.name)}


@api.add("POST", "/api/definitions", need=ADMIN, body=OBJECT)
async def add_definitions(call: Call) -> Outcome:
    """Import definitions. Nothing is deleted; a document with an error or a conflict changes nothing."""
    await _import(call, Topology.from_definitions(call.mapping()))
    return NO_CONTENT


@api.add("POST", "/api/definitions/{vhost}", need=ADMIN, body=OBJECT)
async def add_definitions_to_vhost(call: Call) -> Outcome:
    """Import definitions into a vhost."""
    await _import(call, Topology.from_definitions(call.mapping(), vhost=call.vhost.name))
    return NO_CONTENT


async def _import(call: Call, topology: Topology) -> None:
    users = dict(call.node.broker.authorization.users)
    topology = await call.node.passwords.compute(lambda: hash_passwords(topology, users))
    call.node.begin_turn()
    import_definitions(call.node.broker, topology)
