"""Export and import of definitions: all durable objects of the broker, without messages."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from holtmq.allocator import collected_in_small_pieces
from holtmq.broker.broker import Broker
from holtmq.broker.definition_entries import hash_passwords
from holtmq.broker.definitions_export import export_definitions
from holtmq.broker.definitions_import import import_definitions
from holtmq.compatibility import RABBITMQ_VERSION
from holtmq.management.access import Need
from holtmq.management.operations import NO_CONTENT, OBJECT, Call, Outcome, api
from holtmq.management.slices import beside_the_loop, finish
from holtmq.topology import DEFAULT_VHOST, Topology

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
    return await _import(call, DEFAULT_VHOST)


@api.add("POST", "/api/definitions/{vhost}", need=ADMIN, body=OBJECT)
async def add_definitions_to_vhost(call: Call) -> Outcome:
    """Import definitions into a vhost."""
    return await _import(call, call.vhost.name)


_imports: WeakKeyDictionary[Broker, asyncio.Lock] = WeakKeyDictionary()
"""For each broker: the lock that keeps two imports apart."""


async def _import(call: Call, vhost: str) -> Outcome:
    broker, begin_turn = call.node.broker, call.node.begin_turn
    topology = await beside_the_loop(Topology.from_definitions, await call.large_mapping(), vhost=vhost)
    users = dict(broker.authorization.users)
    hashed = await call.node.passwords.compute(lambda: hash_passwords(topology, users))
    async with _imports.setdefault(broker, asyncio.Lock()):
        with collected_in_small_pieces():
            await finish(import_definitions(broker, hashed), begin_turn)
    return NO_CONTENT
