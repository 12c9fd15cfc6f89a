"""HoltMQ: AMQP routing from one file to a cluster."""

from holtmq.errors import (
    AccessRefusedError,
    AmqpChannelError,
    AmqpError,
    BindingArgumentsMismatchError,
    DefinitionsError,
    HoltmqError,
    InvalidValueError,
    NotFoundError,
    PreconditionFailedError,
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
    "Entry",
    "Exchange",
    "Explanation",
    "HoltmqError",
    "InvalidValueError",
    "NotFoundError",
    "Policy",
    "PreconditionFailedError",
    "Queue",
    "Route",
    "Router",
    "Table",
    "Topology",
]
