"""The broker as a whole: totals, the node, the cluster name, and the current user."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holtmq.compatibility import RABBITMQ_VERSION
from holtmq.errors import NotFoundError
from holtmq.management.access import Need
from holtmq.management.node import Node
from holtmq.management.operations import CHARTS, NO_CONTENT, Call, Outcome, api
from holtmq.management.slices import finish
from holtmq.management.statistics import CHURN_COLUMNS, IN, LENGTHS, NODE_COLUMNS, OUT, node_numbers, stats, with_deliver_get
from holtmq.management.views import NODE
from holtmq.routing.router import MATCHERS
from holtmq.topology import Parameter

PROTOCOLS = {"amqp": "amqp", "amqps": "amqp/ssl", "http": "http", "https": "https"}
CLUSTER_NAME = Parameter("", "cluster_name", "null")
EXCHANGE_TYPES = [{"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in sorted(MATCHERS) if name]


@api.get("/api/overview", query=CHARTS)
async def overview(call: Call) -> dict[str, Any]:
    """Return totals, message rates and listeners of the broker."""
    node = call.node
    span = call.span("msg_rates") or call.span("lengths")
    if call.caller.has(Need.MONITORING):
        numbers = stats(NODE_COLUMNS, await finish(node_numbers(node)), call.statistics.totals, span)
    else:  # only the vhosts that the user can access
        numbers = stats(NODE_COLUMNS, await finish(node_numbers(node, call.vhosts)), None, span)

    def part(columns: tuple[str, ...]) -> dict[str, Any]:
        return {name: numbers[name] for column in columns for name in (column, f"{column}_details")}

    listeners = _listeners(node)
    return {
        "product_name": "HoltMQ",
        "product_version": version("holtmq"),
        "rabbitmq_version": RABBITMQ_VERSION,
        "management_version": RABBITMQ_VERSION,
        "erlang_version": "",
        "erlang_full_version": "",
        "python_version": platform.python_version(),
        "cluster_name": cluster_name_of(node),
        "node": NODE,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [3600], "basic": [300], "detailed": [300]},
        "exchange_types": EXCHANGE_TYPES,
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        "message_stats": with_deliver_get(part((*IN, *OUT))),
        "churn_rates": part(CHURN_COLUMNS),
        "queue_totals": part(NODE_COLUMNS[:LENGTHS]),
        "object_totals": _object_totals(node),
        "listeners": listeners,
        "contexts": [
            {"node": NODE, "description": "HoltMQ Management", "path": "/", "ip": each["ip_address"], "port": each["port"]}
            for each in listeners
            if each["protocol"].startswith("http")
        ],
    }


def _object_totals(node: Node) -> dict[str, int]:
    vhosts = node.broker.vhosts.values()
    sessions = [client.session for client in node.clients if client.session is not None]
    return {
        "connections": len(sessions),
        "channels": sum(len(session.channels) for session in sessions),
        "exchanges": sum(len(vhost.router.registry.exchanges) + 1 for vhost in vhosts),
        "queues": sum(len(vhost.queues) for vhost in vhosts),
        "consumers": sum(len(channel.consumers) for session in sessions for channel in session.channels.values()),
    }


def _listeners(node: Node) -> list[dict[str, Any]]:
    parts = [urlsplit(address) for address in node.addresses]
    return [
        {"node": NODE, "protocol": PROTOCOLS[part.scheme], "ip_address": part.hostname, "port": part.port, "socket_opts": {}}
        for part in parts
    ]


def cluster_name_of(node: Node) -> str:
    """Return the configured cluster name, or the node's name."""
    chosen = node.broker.parameters.get(CLUSTER_NAME.identity)
    return str(json.loads(chosen.value)) if chosen is not None else NODE


@api.get("/api/cluster-name")
def cluster_name(call: Call) -> dict[str, Any]:
    """Return the cluster name."""
    return {"name": cluster_name_of(call.node)}


@api.add(
    "PUT",
    "/api/cluster-name",
    need=Need.ADMINISTRATOR,
    body={"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
)
def rename_cluster(call: Call) -> Outcome:
    """Set the cluster name."""
    name = call.fields().text("name")
    call.node.begin_turn()
    call.node.broker.set_parameter(Parameter("", "cluster_name", json.dumps(name)))
    return NO_CONTENT


@api.get("/api/whoami")
def whoami(call: Call) -> dict[str, Any]:
    """Return the name and tags of the current user."""
    return {"name": call.caller.user.name, "tags": list(call.caller.user.tags)}


@api.get("/api/auth", need=Need.NOTHING)
def auth(_: Call) -> dict[str, Any]:
    """Return the authentication method. OAuth is not supported."""
    return {"oauth_enabled": False}


@api.collection("/api/extensions")
def extensions(_: Call) -> list[Any]:
    """List extensions of the web pages. Always empty."""
    return []


@api.collection("/api/nodes", need=Need.MONITORING)
def nodes(call: Call) -> list[dict[str, Any]]:
    """List the nodes of the cluster. HoltMQ runs on one node."""
    return [_node(call.node)]


@api.get("/api/nodes/{node}", need=Need.MONITORING)
def node(call: Call) -> dict[str, Any]:
    """Return a node."""
    if call.path["node"] != NODE:
        raise NotFoundError(f"no node {call.path['node']!r}: the only node is {NODE!r}")
    return _node(call.node)


def _node(node: Node) -> dict[str, Any]:
    config, soft_files = node.config, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = Path("/proc/self/fd")
    return {
        "name": NODE,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "uptime": node.clock.now_ms() - int(node.started_at * 1000),
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count(),
        "rates_mode": "basic",
        "exchange_types": EXCHANGE_TYPES,
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True} for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        "applications": [{"name": "holtmq", "description": "HoltMQ", "version": version("holtmq")}],
        "db_dir": config.shown_data,
        "reports_dir": config.reports,
        "config_files": [],
        "log_files": ["<stderr>"],
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "partitions": [],
        "cluster_links": [],
        "mem_used": memory_used(),
        "mem_limit": config.memory_bytes,
        "mem_alarm": node.broker.memory.is_alarmed,
        "mem_counted": node.broker.memory.total,
        "damaged_messages": node.broker.journal.damaged,
        "disk_free": shutil.disk_usage(config.data_folder or Path.cwd()).free,
        "disk_free_limit": node.disk_free_limit,
        "disk_free_alarm": node.blocked_for == "disk",
        "fd_used": sum(1 for _ in files.iterdir()) if files.is_dir() else 0,
        "fd_total": soft_files,
        "sockets_used": len(node.clients),
        "sockets_total": config.max_connections,
        "proc_used": 1,
        "proc_total": 1,
        "run_queue": 0,
        **dict.fromkeys(("gc_num", "gc_bytes_reclaimed", "context_switches", "io_read_count", "io_write_count"), 0),
    }


def memory_used() -> int:
    """Return the resident memory of the process, in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
