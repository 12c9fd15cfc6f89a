"""A whole topology as one frozen value: what a definitions file says, and what a router is built from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holtmq.topology import definitions_file
from holtmq.topology.entities import DEFAULT_VHOST, Binding, Exchange, Policy, Queue


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues, bindings and policies of any number of vhosts, in the order in which they were declared.

    `sections` holds every other part of a definitions file (vhosts, users, permissions, parameters, and those that HoltMQ
    knows nothing of) as its name and its JSON text, so that what was read can be written again without loss.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    sections: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_definitions(cls, source: str | Path | Mapping[str, Any], *, vhost: str = DEFAULT_VHOST) -> Topology:
        """Read RabbitMQ's definitions JSON: a file's path, or the document already parsed.

        `vhost` is where the parts of a single-vhost export belong, whose entries name none. An invalid document is
        refused whole with a `DefinitionsError` that names the path of the offending value.
        """
        document = source if isinstance(source, Mapping) else definitions_file.parse(Path(source).read_bytes())
        return cls(*definitions_file.read(document, vhost))

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read the topology of a HoltMQ file."""
        from holtmq.store.sqlite.declarations import load_topology

        return load_topology(path)

    def to_definitions(self, *, vhost: str | None = None) -> dict[str, Any]:
        """The definitions document: of everything or, as RabbitMQ exports it, of one vhost without naming it."""
        return definitions_file.write(self.exchanges, self.queues, self.bindings, self.policies, self.sections, vhost)

    @property
    def vhosts(self) -> tuple[str, ...]:
        """The vhosts that the file lists or that something is in; the default one is always there."""
        listed = [entry["name"] for entry in json.loads(dict(self.sections).get("vhosts", "[]"))]
        parts: tuple[Exchange | Queue | Binding | Policy, ...] = (*self.exchanges, *self.queues, *self.bindings, *self.policies)
        return tuple(dict.fromkeys([DEFAULT_VHOST, *listed, *(part.vhost for part in parts)]))
