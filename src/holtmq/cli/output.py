"""The output of commands: colours and the full width in a terminal, plain text in a pipe, JSON for scripts.

Names and messages come from others. Control characters in them are escaped, so that they cannot control the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from holtmq.printable import printable

PIPE_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Escaped:
    """A renderable whose text is escaped. Styles are not part of the text."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)


def show(*parts: RenderableType) -> None:
    """Print with rich; a pipe gets lines without trailing blanks."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    escaped = [Escaped(part) for part in parts]
    if console.is_terminal:
        console.print(*escaped, sep="\n")
        return
    with console.capture() as captured:
        console.print(*escaped, sep="\n")
    sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().split("\n")[:-1])


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(printable(json.dumps(value, indent=2, ensure_ascii=False), keep="\n"))


def write_secret(file: Path, text: str) -> None:
    """Write text that others must not read. A new file is for its owner only; an existing one keeps its permissions."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
