"""An explanation as plain text. The command line draws the same parts with colours (`holtmq.cli.explanation_view`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from holtmq.table import FieldValue, describe
from holtmq.topology.weight import CONSISTENT_HASH

if TYPE_CHECKING:
    from holtmq.routing.explanation import ExplainedHop, Explanation
    from holtmq.topology import Binding

WIDTH = 120
INDENT = 3
GAP = 2
WIDEST_RULE = 48
WIDEST_DESTINATION = 40
NO_QUEUE = "No queue: the message is dropped, or returned to the publisher if it was published as mandatory."


class Row(NamedTuple):
    """One binding of a hop: whether it matched, its rule, its destination and the reason."""

    is_match: bool
    rule: str
    destination: str
    reason: str


def to_text(explanation: Explanation) -> str:
    """Return the explanation as text; the bindings of each hop stand in columns, wrapped at `WIDTH` characters."""
    lines = [title(explanation), *header_lines(explanation)]
    for number, hop in enumerate(explanation.hops, 1):
        lines += ["", f"{number}. {exchange_name(hop.exchange.name)} ({hop.exchange.type}) {hop.cause}"]
        lines += [(" " * INDENT + line).rstrip() for line in _hop_lines(hop)]
    lines += ["", *wrap(outcome(explanation), WIDTH, break_on_hyphens=False)]
    return "\n".join(lines)


def title(explanation: Explanation) -> str:
    """Return the headline: what is published to which exchange."""
    vhost = f" in vhost {explanation.vhost}" if explanation.vhost != "/" else ""
    return f"{published_keys(explanation)} to exchange {exchange_name(explanation.exchange)}{vhost}"


def published_keys(explanation: Explanation) -> str:
    """Return the routing key of the message, and those of its CC and BCC headers."""
    return ", ".join(explanation.routing_keys) or "(empty key)"


def header_lines(explanation: Explanation) -> list[str]:
    """Return one line for each header of the message."""
    return [f"  header {name}: {describe(value)}" for name, value in explanation.headers.items()]


def exchange_name(name: str) -> str:
    """Return the name of an exchange, or a stand-in for the empty name of the default exchange."""
    return name or "(default)"


def hop_rows(hop: ExplainedHop) -> list[Row]:
    """Return the bindings to show for a hop: matches first, then near misses."""
    type_ = hop.exchange.type
    matches = [
        Row(True, describe_rule(m.binding, type_), _destination(m.binding), f"{m.reason}; {m.note}" if m.note else m.reason)
        for m in hop.matches
    ]
    misses = [Row(False, describe_rule(m.binding, type_), _destination(m.binding), m.reason) for m in hop.near_misses]
    return matches + misses


def others_line(hop: ExplainedHop) -> str | None:
    """Return the line that counts the bindings not shown, or None if all are shown."""
    others = hop.bindings - len(hop.matches) - len(hop.near_misses)
    if not others:
        return None
    if hop.exchange.type == CONSISTENT_HASH:
        return f"· {count(others, 'other binding')} {'is' if others == 1 else 'are'} not chosen"
    return f"· {count(others, 'other binding')} {'does' if others == 1 else 'do'} not come close"


def note_line(hop: ExplainedHop) -> str | None:
    """Return the line that says what happened because nothing matched, or None if something did."""
    return f"→ {hop.note}" if hop.note else None


def outcome(explanation: Explanation) -> str:
    """Return the closing line: the queues that the message reaches."""
    if not explanation.queues:
        return NO_QUEUE
    queues = ", ".join(name + entry_settings(explanation, name) for name in explanation.queues)
    return f"{count(len(explanation.queues), 'queue')}: {queues}"


def entry_settings(explanation: Explanation, queue: str) -> str:
    """Return the priority and TTL that the message gets from its binding to a queue, in parentheses, or ''."""
    entry = explanation.route.entries.get(queue)
    if entry is None:
        return ""
    settings = [f"priority {entry.priority}"] if entry.priority is not None else []
    settings += [f"TTL {entry.ttl_ms} ms"] if entry.ttl_ms is not None else []
    return f" ({', '.join(settings)} from the binding)"


def describe_rule(binding: Binding, exchange_type: str) -> str:
    """Return what a binding matches on, in a few words."""
    if exchange_type == "fanout":
        return "every message"
    if exchange_type == CONSISTENT_HASH:
        return f"weight {binding.routing_key}"
    if exchange_type != "headers":
        return binding.routing_key or "''"
    mode = str(binding.arguments.get("x-match", "all"))
    criteria = [f"{k}={_criterion_value(v)}" for k, v in binding.arguments.items() if k != "x-match"]
    return f"{mode}: {', '.join(criteria)}" if criteria else f"{mode}, without criteria"


def count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or the plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _criterion_value(value: FieldValue) -> str:
    return "(any value)" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _destination(binding: Binding) -> str:
    return f"→ {'' if binding.is_to_queue else 'exchange '}{binding.destination}"


def _hop_lines(hop: ExplainedHop) -> Iterator[str]:
    rows = hop_rows(hop)
    rule_width = min(WIDEST_RULE, max((len(row.rule) for row in rows), default=0))
    destination_width = min(WIDEST_DESTINATION, max((len(row.destination) for row in rows), default=0))
    reason_width = WIDTH - INDENT - len("✓") - rule_width - destination_width - 3 * GAP
    for row in rows:
        cells = (
            ["✓" if row.is_match else "✗"],
            _fold(row.rule, rule_width),
            _fold(row.destination, destination_width),
            _fold(row.reason, reason_width),
        )
        yield from _side_by_side(cells, (1, rule_width, destination_width, reason_width))
    for line in (others_line(hop), note_line(hop)):
        yield from _fold(line, WIDTH - INDENT) if line else ()


def _fold(text: str, width: int) -> list[str]:
    return [text] if len(text) <= width else wrap(text, width, break_on_hyphens=False)


def _side_by_side(cells: Sequence[list[str]], widths: Sequence[int]) -> Iterator[str]:
    for number in range(max(map(len, cells))):
        parts = ((cell[number] if number < len(cell) else "").ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield (" " * GAP).join(parts)
