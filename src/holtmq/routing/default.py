"""The default exchange, to which every queue is bound implicitly with its name as the routing key."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holtmq.errors import AccessRefusedError
from holtmq.routing.direct import judge_key
from holtmq.routing.matcher import Matcher, Verdict
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_EXCHANGE, Binding, Exchange, Registry


class DefaultMatcher(Matcher):
    """The implicit bindings of the default exchange, derived from the queues of the vhost."""

    type = "direct"

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.exchange = Exchange(DEFAULT_EXCHANGE, self.type, vhost=registry.vhost)

    def add(self, binding: Binding) -> None:
        raise AccessRefusedError("operation not permitted on the default exchange")

    def remove(self, binding: Binding) -> None:
        raise AccessRefusedError("operation not permitted on the default exchange")

    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        return (self.implicit_binding(routing_key),) if routing_key in self._registry.queues else ()

    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        verdict = judge_key(binding.routing_key, routing_key)
        return Verdict(True, "every queue is bound with its own name") if verdict.is_match else verdict

    def covering(self, binding: Binding) -> Collection[Binding]:
        return (binding,)

    def bindings(self) -> list[Binding]:
        """Return the implicit bindings of all queues."""
        return [self.implicit_binding(name) for name in self._registry.queues]

    def implicit_binding(self, queue: str) -> Binding:
        """Return the implicit binding of a queue."""
        return Binding(DEFAULT_EXCHANGE, queue, queue, vhost=self._registry.vhost)
