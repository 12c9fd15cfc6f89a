"""Why the server does not read from a client."""

from __future__ import annotations

from enum import Flag, auto


class Pause(Flag):
    """The reasons, each on its own: reading resumes when the last of them is gone."""

    NONE = 0
    BLOCKED = auto()
    """It publishes while publishers are blocked."""
    THROTTLED = auto()
    """It publishes faster than consumers receive."""
    LOGIN = auto()
    """Its login is being checked."""
    OUTPUT = auto()
    """It does not read the messages that it asked for."""
    CHORE = auto()
    """What it asked for takes long, and is still being done."""
