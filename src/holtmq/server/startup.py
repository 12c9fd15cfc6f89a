"""Startup: opens a file, recovers the broker from it, and imports a definitions file."""

from __future__ import annotations

import json
import logging
import time
from typing import cast

from holtmq.accounts import Permission, User
from holtmq.broker.broker import Broker
from holtmq.broker.definitions_import import import_definitions
from holtmq.broker.vhost import VirtualHost
from holtmq.config import Config
from holtmq.queueing.rules import QueueRules
from holtmq.store.records import Durability
from holtmq.store.sqlite.batch_journal import SqliteJournal
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.topology import DEFAULT_VHOST, Topology

log = logging.getLogger(__name__)


def open_broker(config: Config, address: str) -> tuple[Broker, SqliteJournal]:
    """Open the file and return the broker recovered from it. No other process can open the file until the journal is closed."""
    database = SqliteDatabase(config.data, durability=cast("Durability", config.durability), owner=address)
    journal = SqliteJournal(database)
    broker = Broker(journal, strict_unbind=config.strict_unbind, memory_limit=config.memory_bytes)
    try:
        broker.begin(time.time_ns() // 1_000_000)
        recover(broker, journal)
        if config.definitions is not None:
            import_definitions(broker, Topology.from_definitions(config.definitions))
    except BaseException:
        journal.close()
        raise
    return broker, journal


def recover(broker: Broker, journal: SqliteJournal) -> None:
    """Load vhosts, queues, users and permissions from the journal. A new file gets the user guest."""
    recovered = journal.recover()
    broker.last_id = max(broker.last_id, recovered.last_id)
    metadata = {entry.pop("name"): entry for entry in json.loads(dict(recovered.topology.sections).get("vhosts", "[]"))}
    for name in recovered.topology.vhosts:
        vhost = broker.vhosts[name] = VirtualHost(name, broker, recovered.topology)
        vhost.metadata = metadata.get(name, {})
        for queue in vhost.router.registry.queues.values():
            state = recovered.queues[name, queue.name]
            rules = QueueRules.of(queue, vhost.router.registry.queue_policy(queue.name))
            vhost.open_queue(queue, state.id, rules).recover(state.counts, state.size, state.delivered_to, state.next_expiry)
    broker.watch_delayed()
    broker.parameters.update((parameter.identity, parameter) for parameter in journal.parameters())
    users, permissions = journal.accounts()
    broker.authorization.users.update((user.name, user) for user in users)
    for permission in permissions:
        broker.authorization.set_permission(permission)
    if not users:
        broker.set_user(User.with_password("guest", "guest", ("administrator",)))
        broker.set_permission(Permission("guest", DEFAULT_VHOST))
