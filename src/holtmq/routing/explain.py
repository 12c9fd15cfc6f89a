"""Builds the explanation of a route: follows the router from exchange to exchange and judges every binding on the way."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holtmq.routing.explanation import ExplainedHop, Explanation, Match, NearMiss
from holtmq.routing.explanation_text import describe_rule
from holtmq.routing.matcher import Matcher, Verdict
from holtmq.routing.route import Route
from holtmq.steps import Steps, sort
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_EXCHANGE, Binding, Exchange

if TYPE_CHECKING:
    from holtmq.routing.router import Hop, Router

NEAR_MISSES_SHOWN = 5
CLOSE_ENOUGH = 0.2
"""Bindings below this closeness are counted, but not shown."""


def explain(
    router: Router, exchange: str, routing_keys: tuple[str, ...], headers: Mapping[str, FieldValue]
) -> Steps[Explanation]:
    """Return the explanation of a route."""
    walk = _Walk(router, routing_keys, headers)
    walk.causes[exchange] = "published here"
    hops: list[ExplainedHop] = []
    for hop in router.walk(exchange, routing_keys, headers):
        hops += ((yield from walk.explain(hop)),)
    return Explanation(router.vhost, exchange, routing_keys, headers, tuple(hops), Route.through(walk.entered_by))


class _Walk:
    """The state of a walk: what led to each exchange, and the queues reached so far."""

    def __init__(self, router: Router, routing_keys: tuple[str, ...], headers: Mapping[str, FieldValue]) -> None:
        self.router = router
        self.routing_keys = routing_keys
        self.headers = headers
        self.causes: dict[str, str] = {}
        self.entered_by: list[Binding] = []
        self._reached: set[str] = set()

    def explain(self, hop: Hop) -> Steps[ExplainedHop]:
        """Return the explanation of one hop, and record what it leads to."""
        exchange = self._exchange(hop.exchange)
        if hop.exchange == DEFAULT_EXCHANGE and self.causes[hop.exchange] != "published here":
            nowhere = "the default exchange routes nothing when it is used as an alternate exchange"
            return ExplainedHop(exchange, self.causes[hop.exchange], (), (), 0, nowhere)
        matcher = self.router.matcher(hop.exchange)
        number, bindings = self.router.snapshot_from(hop.exchange)
        matched = set(hop.matched)
        matches = []
        for binding in (yield from sort(list(matched), _sort_key)):
            matches.append(self._match(binding, matcher, hop))
            yield
        misses = yield from self._near_misses(matcher, bindings, matched)
        note = None if matches else self._describe_alternate(hop)
        return ExplainedHop(exchange, self.causes[hop.exchange], tuple(matches), misses, number, note)

    def _exchange(self, name: str) -> Exchange:
        registry = self.router.registry
        return Exchange(name, "direct", vhost=registry.vhost) if name == DEFAULT_EXCHANGE else registry.exchange(name)

    def _match(self, binding: Binding, matcher: Matcher, hop: Hop) -> Match:
        reason = self._best_verdict(matcher, binding).reason
        if binding.is_to_queue:
            self.entered_by.append(binding)
            is_again = binding.destination in self._reached
            self._reached.add(binding.destination)
            return Match(binding, reason, "already reached: the queue gets one copy" if is_again else None)
        if binding.destination in self.causes:
            cycle = ": the cycle ends here" if self._closes_cycle(binding) else ""
            return Match(binding, reason, f"already visited{cycle}")
        self.causes[binding.destination] = f"from {hop.exchange} via {describe_rule(binding, matcher.type)}"
        return Match(binding, reason)

    def _closes_cycle(self, binding: Binding) -> bool:
        """Return whether the destination of a binding can reach the source of that binding."""
        ahead = [binding.destination]
        seen = set(ahead)
        for name in ahead:
            if name == binding.source:
                return True
            onward = {link.destination for link in self.router.registry.links_from(name)} - seen
            seen |= onward
            ahead += onward
        return False

    def _best_verdict(self, matcher: Matcher, binding: Binding) -> Verdict:
        """Return the verdict for the routing key that matches best; with several keys (CC, BCC), the reason names it."""
        if len(self.routing_keys) == 1 or not matcher.reads_routing_key or matcher.chooses_one:
            return matcher.judge(binding, self.routing_keys[0], self.headers)
        verdicts = [(matcher.judge(binding, key, self.headers), key) for key in self.routing_keys]
        best, key = max(verdicts, key=lambda pair: (pair[0].is_match, pair[0].closeness))
        return Verdict(best.is_match, f"{best.reason} (key {key!r})", best.closeness)

    def _near_misses(self, matcher: Matcher, bindings: Iterable[Binding], matched: set[Binding]) -> Steps[tuple[NearMiss, ...]]:
        best: list[tuple[tuple[float, tuple[str, ...]], NearMiss]] = []
        for binding in bindings:
            yield
            verdict = self._best_verdict(matcher, binding) if binding not in matched else None
            if verdict is None or verdict.closeness < CLOSE_ENOUGH:
                continue
            if len(best) == NEAR_MISSES_SHOWN and -verdict.closeness > best[-1][0][0]:
                continue
            rank = (-verdict.closeness, _sort_key(binding))
            insort(best, (rank, NearMiss(binding, verdict.reason, verdict.closeness)), key=lambda entry: entry[0])
            del best[NEAR_MISSES_SHOWN:]
        return tuple(miss for _, miss in best)

    def _describe_alternate(self, hop: Hop) -> str:
        alternate, policy = self.router.alternate_exchange(hop.exchange)
        if alternate is None:
            return "no binding matches, and there is no alternate exchange"
        by_policy = f" (set by policy {policy.name!r})" if policy else ""
        if hop.alternate is None:
            return f"no binding matches, and the alternate exchange {alternate!r}{by_policy} does not exist"
        if alternate in self.causes:
            return f"no binding matches, and the alternate exchange {alternate!r}{by_policy} has already been visited"
        self.causes[alternate] = f"alternate exchange of {hop.exchange}{by_policy}"
        return f"no binding matches: the message goes to the alternate exchange {alternate!r}{by_policy}"


def _sort_key(binding: Binding) -> tuple[str, str, str, str]:
    return binding.routing_key, binding.destination_type, binding.destination, repr(binding.arguments)
