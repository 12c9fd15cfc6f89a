"""HoltMQ: AMQP routing from one file to a cluster."""

from holtmq.embedded import EmbeddedBroker, Message, aio, open  # noqa: A004  # holtmq.open reads as it should
from holtmq.embedded.legacy import migrate, migrate_pattern
from holtmq.errors import (
    AccessRefusedError,
    AmqpChannelError,
    AmqpError,
    BindingArgumentsMismatchError,
    DefinitionsError,
    HoltmqError,
    InvalidValueError,
    LeaseLostError,
    NotAStoreError,
    NotFoundError,
    PreconditionFailedError,
    QueueFullError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)
from holtmq.routing import Entry, Explanation, Route, Router
from holtmq.table import Table
from holtmq.topology import Binding, Exchange, Policy, Queue, Topology

__version__ = "0.1.0"

__all__ = [
    "AccessRefusedError",
    "AmqpChannelError",
    "AmqpError",
    "Binding",
    "BindingArgumentsMismatchError",
    "DefinitionsError",
    "EmbeddedBroker",
    "Entry",
    "Exchange",
    "Explanation",
    "HoltmqError",
    "InvalidValueError",
    "LeaseLostError",
    "Message",
    "NotAStoreError",
    "NotFoundError",
    "Policy",
    "PreconditionFailedError",
    "Queue",
    "QueueFullError",
    "Route",
    "Router",
    "StoreBusyError",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "Table",
    "Topology",
    "aio",
    "migrate",
    "migrate_pattern",
    "open",
]
