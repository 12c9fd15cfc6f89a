"""Startup: opens a file, recovers the broker from it, and imports a definitions file."""

from __future__ import annotations

import json
import logging
from typing import cast

from holtmq.accounts import RABBITMQ_HASHING, Permission, User, rabbitmq_hash
from holtmq.broker.authorization import GUEST
from holtmq.broker.broker import Broker
from holtmq.broker.definitions_import import import_definitions
from holtmq.broker.vhost import VirtualHost
from holtmq.config import Config
from holtmq.queueing.stream_rules import rules_of
from holtmq.steps import complete
from holtmq.store.opening import open_journal
from holtmq.store.records import Durability
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.topology import DEFAULT_VHOST, Topology

log = logging.getLogger(__name__)


def open_broker(config: Config, address: str, now_ms: int) -> tuple[Broker, BatchJournal]:
    """Open the file and return the broker recovered from it. No other process can open the file until the journal is closed."""
    journal = open_journal(config.data, cast("Durability", config.durability), address)
    broker = Broker(journal, strict_unbind=config.strict_unbind, memory_limit=config.memory_bytes)
    try:
        broker.begin(now_ms)
        definitions = Topology() if config.definitions is None else Topology.from_definitions(config.definitions)
        recover(broker, journal, with_guest=not has_users(definitions))
        if config.definitions is not None:
            complete(import_definitions(broker, definitions))
        if not broker.authorization.users:
            log.warning("nobody can log in: the broker has no users; start it with a definitions file that contains some")
    except BaseException:
        journal.close()
        raise
    return broker, journal


def has_users(definitions: Topology) -> bool:
    """Whether definitions contain users, who then take the place of guest."""
    return bool(json.loads(dict(definitions.sections).get("users", "[]")))


def recover(broker: Broker, journal: BatchJournal, *, with_guest: bool = True) -> None:
    """Load vhosts, queues, users and permissions from the journal.

    A file that no broker has opened before gets the user guest, if `with_guest`. Its password is known to everybody, so a
    slow hash would not protect it.
    """
    recovered = journal.recover()
    broker.last_id = broker.on_disk_id = broker.sealed_id = max(broker.last_id, recovered.last_id)
    metadata = {entry.pop("name"): entry for entry in json.loads(dict(recovered.topology.sections).get("vhosts", "[]"))}
    for name in recovered.topology.vhosts:
        vhost = broker.vhosts[name] = VirtualHost(name, broker, recovered.topology)
        vhost.metadata = metadata.get(name, {})
        for queue in vhost.router.registry.queues.values():
            state = recovered.queues[name, queue.name]
            rules = rules_of(queue, vhost.router.registry.queue_policy(queue.name))
            vhost.open_queue(queue, state.id, rules).recover(state, broker.last_id)
    broker.delayed.watch()
    broker.parameters.update((parameter.identity, parameter) for parameter in journal.parameters())
    users, permissions = journal.accounts()
    broker.authorization.users.update((user.name, user) for user in users)
    for permission in permissions:
        broker.authorization.set_permission(permission)
    if journal.is_known_to_brokers():
        return
    if with_guest and not users:
        broker.set_user(User(GUEST, rabbitmq_hash(GUEST), RABBITMQ_HASHING, ("administrator",)))
        broker.set_permission(Permission(GUEST, DEFAULT_VHOST))
    journal.mark_known()
