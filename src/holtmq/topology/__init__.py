"""Exchanges, queues and bindings: as frozen values, as definitions files, and as a registry that can be changed."""

from holtmq.topology.entities import (
    DEFAULT_EXCHANGE,
    DEFAULT_VHOST,
    Binding,
    DestinationType,
    Exchange,
    Parameter,
    Policy,
    Queue,
)
from holtmq.topology.registry import Registry, Removal
from holtmq.topology.topology import Topology

__all__ = [
    "DEFAULT_EXCHANGE",
    "DEFAULT_VHOST",
    "Binding",
    "DestinationType",
    "Exchange",
    "Parameter",
    "Policy",
    "Queue",
    "Registry",
    "Removal",
    "Topology",
]
