"""holtmq demo: the whole system, run once, ending with a summary."""

from __future__ import annotations

import pickle
import time
from collections import Counter

import click
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.output import show
from holtmq.routing import Router
from holtmq.routing.check import check
from holtmq.topology import Binding, Exchange, Queue, Topology

MESSAGES = 200_000


@click.command()
def demo() -> None:
    """Run the whole system once: build a topology, explain routes, look for weak spots, route traffic."""
    topology = shop()
    router = Router(topology)

    show(Rule("Why did this message go there?", align="left"))
    show(router.explain("orders", "orders.electronics.laptops.premium", {"vip": True}))
    show(Rule("And why did this one not arrive?", align="left"))
    show(router.explain("orders", "order.food", {}))

    show(Rule("What is weak in this topology?", align="left"))
    findings = check(topology)
    for finding in findings:
        show(Text(f"{finding.level}: {finding.subject}: {finding.message}"))

    show(Rule("Traffic, through a pickled copy of the router", align="left"))
    _route_traffic(pickle.loads(pickle.dumps(router)))
    show(
        f"\nSummary: {len(topology.exchanges)} exchanges, {len(topology.queues)} queues, {len(topology.bindings)} bindings; "
        f"{len(findings)} weak spot found; {MESSAGES:,} messages routed."
    )


def shop() -> Topology:
    """A small shop: orders by category, an audit of everything, reports by header, and a place for what nobody wants."""
    orders = Exchange("orders", "topic", arguments={"alternate-exchange": "unclaimed"})
    exchanges = (orders, Exchange("audit", "fanout"), Exchange("desks", "headers"), Exchange("unclaimed", "fanout"))
    queues = tuple(map(Queue, ("laptops", "food", "premium", "audit-log", "vip-desk", "lost-and-found")))
    bindings = (
        Binding("orders", "laptops", "orders.*.laptops.#"),
        Binding("orders", "laptops", "orders.electronics.laptops.premium"),
        Binding("orders", "food", "orders.food"),
        Binding("orders", "premium", "orders.#.premium", {"x-priority": 9}),
        Binding("orders", "audit", "#", destination_type="exchange"),
        Binding("orders", "desks", "orders.#", destination_type="exchange"),
        Binding("audit", "audit-log"),
        Binding("audit", "orders", destination_type="exchange"),
        Binding("desks", "vip-desk", "", {"x-match": "all", "vip": True}),
        Binding("unclaimed", "lost-and-found"),
    )
    return Topology(exchanges, queues, bindings)


def _route_traffic(router: Router) -> None:
    keys = [f"orders.{category}.{item}" for category in ("electronics", "food", "toys") for item in ("laptops", "premium")]
    started = time.perf_counter()
    deliveries = Counter(queue for n in range(MESSAGES) for queue in router.route("orders", keys[n % len(keys)]))
    elapsed_s = time.perf_counter() - started
    grid = Grid("queue", "messages")
    for queue, count in sorted(deliveries.items()):
        grid.add_row(queue, f"{count:,}")
    show(grid)
    show(f"{MESSAGES:,} messages, {sum(deliveries.values()):,} deliveries in {elapsed_s:.2f} s")
