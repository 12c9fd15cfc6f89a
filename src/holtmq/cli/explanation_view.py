"""An explanation in a terminal: the parts of its plain text (`holtmq.routing.explanation_text`), with colours."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from holtmq.routing import Explanation
from holtmq.routing import explanation_text as plain
from holtmq.routing.explanation import ExplainedHop


def explanation_view(explanation: Explanation) -> RenderableType:
    """Return the explanation as something that rich can print."""
    parts: list[RenderableType] = [_title(explanation)]
    for number, hop in enumerate(explanation.hops, 1):
        parts += [Text(), _hop_title(number, hop), Padding(_hop_table(hop), (0, 0, 0, plain.INDENT))]
    return Group(*parts, Text(), _outcome(explanation))


def _title(explanation: Explanation) -> Text:
    title = Text(plain.title(explanation))
    title.stylize("bold cyan", 0, len(plain.published_keys(explanation)))
    for line in plain.header_lines(explanation):
        title.append(f"\n{line}", "dim")
    return title


def _hop_title(number: int, hop: ExplainedHop) -> Text:
    name = plain.exchange_name(hop.exchange.name)
    return Text.assemble(f"{number}. ", (name, "bold"), f" ({hop.exchange.type}) ", (hop.cause, "dim"))


def _hop_table(hop: ExplainedHop) -> RenderableType:
    grid = Grid.grid(padding=(0, plain.GAP, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(max_width=plain.WIDEST_RULE, overflow="fold")
    grid.add_column(max_width=plain.WIDEST_DESTINATION, overflow="fold")
    grid.add_column(overflow="fold", style="dim")
    for row in plain.hop_rows(hop):
        mark = Text("✓", "green") if row.is_match else Text("✗", "red")
        destination = Text(row.destination, "green" if row.is_match else "dim")
        grid.add_row(mark, Text(row.rule), destination, Text(row.reason))
    others, note = plain.others_line(hop), plain.note_line(hop)
    notes = [Text(others, "dim")] if others else []
    notes += [Text(note, "yellow")] if note else []
    return Group(grid, *notes) if grid.row_count else Group(*notes)


def _outcome(explanation: Explanation) -> RenderableType:
    if not explanation.queues:
        return Text(plain.NO_QUEUE, "bold red")
    queues = (Text.assemble((name, "bold"), plain.entry_settings(explanation, name)) for name in explanation.queues)
    return Text.assemble((plain.count(len(explanation.queues), "queue"), "bold green"), ": ", Text(", ").join(queues))
