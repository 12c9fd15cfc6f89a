"""A super stream: one logical stream in several partitions, which are streams behind an x-consistent-hash exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holtmq.errors import PreconditionFailedError
from holtmq.table import EMPTY_TABLE, FieldValue, Table
from holtmq.topology.entities import DEFAULT_VHOST, Binding, Exchange, Queue
from holtmq.topology.weight import CONSISTENT_HASH

MOST_PARTITIONS = 1_000


@dataclass(frozen=True, slots=True)
class SuperStream:
    """The declaration of a super stream, and the exchange, queues and bindings that it consists of.

    A message goes to the partition that the hash of its routing key chooses, so messages with the same key stay in order.
    `arguments` apply to each partition.
    """

    name: str
    partitions: int
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE
    vhost: str = DEFAULT_VHOST

    @property
    def exchange(self) -> Exchange:
        """The exchange that messages are published to. RabbitMQ marks the exchange of a super stream in the same way."""
        return Exchange(self.name, CONSISTENT_HASH, arguments=Table({"x-super-stream": True}), vhost=self.vhost)

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The partitions, called NAME-0, NAME-1 and so on, as in RabbitMQ."""
        arguments = Table({**self.arguments, "x-queue-type": "stream"})
        return tuple(Queue(f"{self.name}-{number}", arguments=arguments, vhost=self.vhost) for number in range(self.partitions))

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of the partitions, all with the same weight."""
        return tuple(Binding(self.name, queue.name, "1", vhost=self.vhost) for queue in self.queues)

    def require_only_partitions(self, bound: Collection[str]) -> None:
        """Raise if anything else is bound to the exchange: it would get a share of the messages."""
        others = sorted(set(bound) - {queue.name for queue in self.queues})
        if others:
            raise PreconditionFailedError(
                f"exchange {self.name!r} must have no bindings but those of its partitions, of which {self.partitions} are "
                f"declared; also bound: {', '.join(others[:5])}"
            )
