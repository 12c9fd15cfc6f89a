"""Text that others have chosen, made safe to print in a log or a terminal."""

from __future__ import annotations

import json


def printable(text: str, *, keep: str = "") -> str:
    """Escape line breaks, control characters, and characters that change the direction of text, except those to keep.

    The escapes are those of JSON, so that JSON stays JSON.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else json.dumps(character)[1:-1] for character in text
    )
