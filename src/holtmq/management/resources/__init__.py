"""One module for each kind of thing that the API is about. Importing them registers their operations."""

from holtmq.management.resources import (
    bindings,
    channels,
    connections,
    definitions,
    exchanges,
    health,
    overview,
    parameters,
    policies,
    queues,
    reports,
    topology_graph,
    users,
    vhosts,
)

__all__ = [
    "bindings",
    "channels",
    "connections",
    "definitions",
    "exchanges",
    "health",
    "overview",
    "parameters",
    "policies",
    "queues",
    "reports",
    "topology_graph",
    "users",
    "vhosts",
]
