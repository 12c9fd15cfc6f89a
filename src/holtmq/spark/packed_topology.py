"""A topology on its way to the executors: packed once on the driver, made into a router once in each worker process."""

from __future__ import annotations

import pickle
import zlib
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from holtmq.allocator import nothing_collected
from holtmq.routing import Router
from holtmq.topology import Registry, Topology

ROUTERS_KEPT = 4
"""Number of routers that a worker process keeps between tasks. Building one costs about 10 µs per binding."""


class PackedTopology(NamedTuple):
    """A topology as it is sent to the executors: compressed, with a digest that identifies it without unpacking."""

    packed: bytes
    digest: bytes
    vhost: str

    @classmethod
    def of(cls, topology: Topology, vhost: str) -> PackedTopology:
        """Pack a topology. Runs on the driver, which resolves the policies: executors cannot match regular expressions."""
        if topology.policies:
            topology = Registry.of(topology, vhost).resolve_policies(topology)
        with nothing_collected():
            packed = zlib.compress(pickle.dumps(topology), 1)
        return cls(packed, blake2b(packed, digest_size=16).digest(), vhost)

    def router(self) -> Router:
        """Return the router of this topology, which each worker process builds once. Runs on the executors."""
        return _unpack(_ByDigest(self))


class _ByDigest:
    """A cache key that hashes the digest only, not megabytes of packed topology."""

    def __init__(self, topology: PackedTopology) -> None:
        self.topology = topology
        self._key = (topology.digest, topology.vhost)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByDigest) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=ROUTERS_KEPT)
def _unpack(wanted: _ByDigest) -> Router:
    with nothing_collected():
        return Router(pickle.loads(zlib.decompress(wanted.topology.packed)), wanted.topology.vhost)
