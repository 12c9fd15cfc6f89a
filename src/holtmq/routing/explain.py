"""Tells the story of a route: walks as the router walks, and asks every binding on the way for its verdict."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from holtmq.routing.explanation import ExplainedHop, Explanation, Match, NearMiss
from holtmq.routing.explanation_text import describe_rule
from holtmq.routing.matcher import Matcher, Verdict
from holtmq.routing.route import Route
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_EXCHANGE, Binding, Exchange

if TYPE_CHECKING:
    from holtmq.routing.router import Hop, Router

NEAR_MISSES_SHOWN = 5
CLOSE_ENOUGH = 0.2
"""Bindings that agree less than this with the message are counted, not shown."""


def explain(router: Router, exchange: str, routing_keys: tuple[str, ...], headers: Mapping[str, FieldValue]) -> Explanation:
    story = _Story(router, routing_keys, headers)
    story.causes[exchange] = "published here"
    hops = tuple(story.tell(hop) for hop in router.walk(exchange, routing_keys, headers))
    return Explanation(router.vhost, exchange, routing_keys, headers, hops, Route.through(story.entered_by))


class _Story:
    """What is known so far while the walk goes on: who led to which exchange, and which queues were reached."""

    def __init__(self, router: Router, routing_keys: tuple[str, ...], headers: Mapping[str, FieldValue]) -> None:
        self.router = router
        self.routing_keys = routing_keys
        self.headers = headers
        self.causes: dict[str, str] = {}
        self.entered_by: list[Binding] = []
        self._reached: set[str] = set()

    def tell(self, hop: Hop) -> ExplainedHop:
        exchange = self._exchange(hop.exchange)
        if hop.exchange == DEFAULT_EXCHANGE and self.causes[hop.exchange] != "published here":
            nowhere = "the default exchange leads nowhere as an alternate exchange"
            return ExplainedHop(exchange, self.causes[hop.exchange], (), (), 0, nowhere)
        matcher = self.router.matcher(hop.exchange)
        bindings = self.router.bindings_from(hop.exchange)
        matches = [self._match(binding, matcher, hop) for binding in sorted(hop.matched, key=_sort_key)]
        misses = self._near_misses(matcher, bindings, set(hop.matched))
        note = None if matches else self._tell_alternate(hop)
        return ExplainedHop(exchange, self.causes[hop.exchange], tuple(matches), misses, len(bindings), note)

    def _exchange(self, name: str) -> Exchange:
        registry = self.router.registry
        return Exchange(name, "direct", vhost=registry.vhost) if name == DEFAULT_EXCHANGE else registry.exchange(name)

    def _match(self, binding: Binding, matcher: Matcher, hop: Hop) -> Match:
        reason = self._best_verdict(matcher, binding).reason
        if binding.is_to_queue:
            self.entered_by.append(binding)
            is_again = binding.destination in self._reached
            self._reached.add(binding.destination)
            return Match(binding, reason, "reached already: the queue gets one copy" if is_again else None)
        if binding.destination in self.causes:
            why = "the cycle is cut here" if self._closes_cycle(binding) else "one visit is enough"
            return Match(binding, reason, f"visited already: {why}")
        self.causes[binding.destination] = f"from {hop.exchange} by {describe_rule(binding, matcher.type)}"
        return Match(binding, reason)

    def _closes_cycle(self, binding: Binding) -> bool:
        """Whether the exchange that a binding leads back to can reach the binding's own source."""
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
        """Of several routing keys (CC, BCC), the verdict on the one that fits best, which is then named."""
        if not matcher.reads_routing_key or len(self.routing_keys) == 1:
            return matcher.judge(binding, self.routing_keys[0], self.headers)
        verdicts = [(matcher.judge(binding, key, self.headers), key) for key in self.routing_keys]
        best, key = max(verdicts, key=lambda pair: (pair[0].is_match, pair[0].closeness))
        return Verdict(best.is_match, f"{best.reason} (key {key!r})", best.closeness)

    def _near_misses(self, matcher: Matcher, bindings: Collection[Binding], matched: set[Binding]) -> tuple[NearMiss, ...]:
        verdicts = ((binding, self._best_verdict(matcher, binding)) for binding in bindings if binding not in matched)
        close = (
            NearMiss(binding, verdict.reason, verdict.closeness)
            for binding, verdict in verdicts
            if verdict.closeness >= CLOSE_ENOUGH
        )
        best = heapq.nsmallest(NEAR_MISSES_SHOWN, close, key=lambda miss: (-miss.closeness, _sort_key(miss.binding)))
        return tuple(best)

    def _tell_alternate(self, hop: Hop) -> str:
        alternate, policy = self.router.alternate_exchange(hop.exchange)
        if alternate is None:
            return "nothing matches, and there is no alternate exchange"
        by_policy = f" (by policy {policy.name!r})" if policy else ""
        if hop.alternate is None:
            return f"nothing matches, and the alternate exchange {alternate!r}{by_policy} does not exist"
        if alternate in self.causes:
            return f"nothing matches, and the alternate exchange {alternate!r}{by_policy} was visited already"
        self.causes[alternate] = f"alternate exchange of {hop.exchange}{by_policy}"
        return f"nothing matches: on to the alternate exchange {alternate!r}{by_policy}"


def _sort_key(binding: Binding) -> tuple[str, str, str, str]:
    return binding.routing_key, binding.destination_type, binding.destination, repr(binding.arguments)
