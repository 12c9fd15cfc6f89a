"""An explanation for human eyes: built of rich's parts, so that colours appear on a terminal and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from holtmq.table import FieldValue, describe

if TYPE_CHECKING:
    from holtmq.routing.explanation import ExplainedHop, Explanation
    from holtmq.topology import Binding

WIDEST_RULE = 48


def render(explanation: Explanation) -> RenderableType:
    parts: list[RenderableType] = [_title(explanation)]
    for number, hop in enumerate(explanation.hops, 1):
        parts += [Text(), _hop_title(number, hop), Padding(_hop_table(hop), (0, 0, 0, 3))]
    return Group(*parts, Text(), _outcome(explanation))


def tell_rule(binding: Binding, exchange_type: str) -> str:
    """What a binding asks for, in a word or two."""
    if exchange_type == "fanout":
        return "every message"
    if exchange_type != "headers":
        return repr(binding.routing_key) if not binding.routing_key else binding.routing_key
    mode = str(binding.arguments.get("x-match", "all"))
    criteria = [f"{k}={_tell_value(v)}" for k, v in binding.arguments.items() if k != "x-match"]
    return f"{mode}: {', '.join(criteria)}" if criteria else f"{mode} of no criteria"


def _tell_value(value: FieldValue) -> str:
    return "(any value)" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _title(explanation: Explanation) -> Text:
    keys = ", ".join(explanation.routing_keys) or "(empty key)"
    title = Text.assemble((keys, "bold cyan"), " to exchange ", (_name(explanation.exchange), "bold"))
    if explanation.vhost != "/":
        title.append(f" in vhost {explanation.vhost}")
    for name, value in explanation.headers.items():
        title.append(f"\n  header {name}: {describe(value)}", "dim")
    return title


def _hop_title(number: int, hop: ExplainedHop) -> Text:
    return Text.assemble(f"{number}. ", (_name(hop.exchange.name), "bold"), f" ({hop.exchange.type}) ", (hop.cause, "dim"))


def _hop_table(hop: ExplainedHop) -> RenderableType:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(max_width=WIDEST_RULE, overflow="fold")
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold", style="dim")
    for match in hop.matches:
        reason = f"{match.reason}; {match.note}" if match.note else match.reason
        grid.add_row(
            Text("✓", "green"),
            Text(tell_rule(match.binding, hop.exchange.type)),
            _destination(match.binding, "green"),
            Text(reason),
        )
    for miss in hop.near_misses:
        grid.add_row(
            Text("✗", "red"),
            Text(tell_rule(miss.binding, hop.exchange.type)),
            _destination(miss.binding, "dim"),
            Text(miss.reason),
        )
    others = hop.bindings - len(hop.matches) - len(hop.near_misses)
    notes = (
        [Text(f"· {count(others, 'other binding')} {'does' if others == 1 else 'do'} not come close", "dim")] if others else []
    )
    if hop.note:
        notes.append(Text(f"→ {hop.note}", "yellow"))
    return Group(grid, *notes) if grid.row_count else Group(*notes)


def _outcome(explanation: Explanation) -> RenderableType:
    if not explanation.queues:
        return Text("No queue: the message is dropped, or returned to a publisher that asked for it (mandatory).", "bold red")
    outcome = Text.assemble((count(len(explanation.queues), "queue"), "bold green"), ": ")
    outcome.append(Text(", ").join(_queue(name, explanation) for name in explanation.queues))
    return outcome


def _queue(name: str, explanation: Explanation) -> Text:
    entry = explanation.route.entries.get(name)
    if entry is None:
        return Text(name, "bold")
    given = [f"priority {entry.priority}"] if entry.priority is not None else []
    given += [f"TTL {entry.ttl_ms} ms"] if entry.ttl_ms is not None else []
    return Text.assemble((name, "bold"), f" ({', '.join(given)} from the binding)")


def _destination(binding: Binding, style: str) -> Text:
    prefix = "" if binding.is_to_queue else "exchange "
    return Text.assemble("→ ", (prefix + binding.destination, style))


def _name(exchange: str) -> str:
    return exchange or "(default)"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
