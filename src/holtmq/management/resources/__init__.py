"""The resources of the HTTP API, one module each. Importing a module registers its operations."""

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
    runs,
    topology_graph,
    users,
    vacuum,
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
    "runs",
    "topology_graph",
    "users",
    "vacuum",
    "vhosts",
]
