"""route_batches(): route a stream with a topology that changes while the stream runs.

A stream that `route` returns keeps the topology that it was made with. Here, the driver reads the topology again for each
micro-batch, and each delivery says with which version it was routed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithPriorAuth, build_opener

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.spark.deliveries import route
from holtmq.spark.routing_request import DEFAULT_COLUMNS, Columns, Unroutable
from holtmq.topology import DEFAULT_VHOST, Topology

TopologySource: TypeAlias = str | Path | Callable[[], Topology]
VERSION = "topology_version"
FETCH_TIMEOUT_S = 30.0
MAX_DEFINITIONS_BYTES = 256 * 1024 * 1024


class TopologyError(HoltmqError):
    """The topology of a stream cannot be read."""


def route_batches(
    write: Callable[[DataFrame, int], None],
    topology: TopologySource,
    *,
    vhost: str = DEFAULT_VHOST,
    exchange: str | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    unroutable: Unroutable = "keep",
    settings: bool = False,
    bindings: bool = False,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that routes each micro-batch with the topology as it is then, and writes it.

    The deliveries have the columns of `route`, and `topology_version`, which is the same for topologies with equal exchanges,
    queues, bindings and policies. If the topology cannot be read, the stream stops with an error, and continues with the same
    batch when it is started again.

    The driver reads the topology and calls `write`; the executors route.

    Args:
        write: A function that writes the deliveries of a micro-batch. It gets them and the number of the batch.
        topology: The path of a definitions file, the URL of a broker's definitions
            (`http://user:password@host:15672/api/definitions`), or a function that returns a topology.
        vhost: The virtual host of the topology.
        exchange: The exchange of all messages (default: the exchange column).
        columns: The names of the columns for routing key, exchange and headers.
        unroutable: "keep", "drop" or return "only" messages that reach no queue.
        settings: Whether to add the priority and time to live that bindings set.
        bindings: Whether to add the bindings through which the message entered the queue.
    """
    if not callable(topology) and not isinstance(topology, str | Path):
        raise InvalidValueError(
            f"topology must be a path, a URL or a function that returns a Topology, got {type(topology).__name__}. "
            "For a topology that does not change, use route()"
        )

    def route_batch(messages: DataFrame, batch: int) -> None:
        now = read_topology(topology)
        deliveries = route(
            messages, now, vhost=vhost, exchange=exchange, columns=columns, unroutable=unroutable, settings=settings,
            bindings=bindings, plan="arrow",
        )  # fmt: skip
        write(deliveries.withColumn(VERSION, F.lit(version_of(now))), batch)

    return route_batch


def read_topology(source: TopologySource) -> Topology:
    """Read a topology from a file or a URL, or call the function. Runs on the driver."""
    if callable(source):
        found = source()
        if not isinstance(found, Topology):
            raise TopologyError(f"the function for the topology must return a Topology, got {type(found).__name__}")
        return found
    if not str(source).startswith(("http://", "https://")):
        return Topology.from_definitions(source)
    try:
        return Topology.from_definitions(json.loads(_fetch(str(source))))
    except (URLError, OSError, ValueError) as error:
        parts = urlsplit(str(source))
        place = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}{parts.path}"
        raise TopologyError(f"cannot read the definitions at {place}: {error}") from error


def version_of(topology: Topology) -> str:
    """Return a short text that is the same for topologies that route alike.

    Neither the order of declaration counts nor what else a definitions file contains, such as users and unknown fields.
    """
    plain = Topology(
        tuple(replace(exchange, extra={}) for exchange in topology.exchanges),
        tuple(replace(queue, extra={}) for queue in topology.queues),
        tuple(replace(binding, created_at=None, metadata={}, extra={}) for binding in topology.bindings),
        tuple(replace(policy, extra={}) for policy in topology.policies),
    )
    canonical = {
        name: sorted(json.dumps(entry, sort_keys=True) for entry in entries) for name, entries in plain.to_definitions().items()
    }
    return blake2b(json.dumps(canonical, sort_keys=True).encode(), digest_size=8).hexdigest()


def _fetch(url: str) -> bytes:
    parts = urlsplit(url)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    passwords = HTTPPasswordMgrWithPriorAuth()
    passwords.add_password(None, plain, unquote(parts.username or "guest"), unquote(parts.password or "guest"), True)
    with build_opener(HTTPBasicAuthHandler(passwords)).open(plain, timeout=FETCH_TIMEOUT_S) as answer:
        return bytes(answer.read(MAX_DEFINITIONS_BYTES))
