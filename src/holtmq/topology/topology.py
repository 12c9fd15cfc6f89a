"""A topology as one frozen value: read from a definitions file, and the input of a router."""

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
    """The exchanges, queues, bindings and policies of one or more vhosts, in the order of their declaration.

    `sections` holds the other sections of a definitions file (vhosts, users, permissions, parameters and unknown ones), each
    as its name and its JSON text. A file can be read and written again without loss.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    sections: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_definitions(cls, source: str | Path | Mapping[str, Any], *, vhost: str = DEFAULT_VHOST) -> Topology:
        """Read RabbitMQ's definitions JSON from a file or from a parsed document.

        `vhost` applies to entries that do not name one, as in the export of a single vhost. An invalid document raises
        `DefinitionsError` with the path of the offending value.
        """
        document = source if isinstance(source, Mapping) else definitions_file.parse(Path(source).read_bytes())
        return cls(*definitions_file.read(document, vhost))

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read the topology of a HoltMQ file, or of a PostgreSQL database by its URL."""
        from holtmq.store.opening import load_topology

        return load_topology(path)

    def to_definitions(self, *, vhost: str | None = None) -> dict[str, Any]:
        """Return the definitions document of all vhosts or, in the format of RabbitMQ's single-vhost export, of one."""
        return definitions_file.write(self.exchanges, self.queues, self.bindings, self.policies, self.sections, vhost)

    @property
    def vhosts(self) -> tuple[str, ...]:
        """The vhosts that are listed or contain something, and always the default vhost."""
        listed = [entry["name"] for entry in json.loads(dict(self.sections).get("vhosts", "[]"))]
        parts: tuple[Exchange | Queue | Binding | Policy, ...] = (*self.exchanges, *self.queues, *self.bindings, *self.policies)
        return tuple(dict.fromkeys([DEFAULT_VHOST, *listed, *(part.vhost for part in parts)]))
