"""The output of commands: colours and the full width in a terminal, plain text in a pipe, JSON for scripts."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console, RenderableType

PIPE_WIDTH = 120


def show(*parts: RenderableType) -> None:
    """Print with rich; a pipe gets lines without trailing blanks."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
