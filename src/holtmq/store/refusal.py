"""The error of a process that cannot open a store because another one has it."""

from __future__ import annotations

import os
import socket

from holtmq.errors import StoreOwnedError

COPY = "holtmq copy"


def copy_owner() -> str:
    """Return what names this process as the owner of the stores that it copies. No other process has the same name."""
    return f"{COPY} (process {os.getpid()} on {socket.gethostname()})"


def refusal(path: str, owner: str | None) -> StoreOwnedError:
    """Return the error for a store with this owner: the address of a broker, a copy, or None for embedded libraries."""
    if not owner:
        text = f"{path} is open in another process through holtmq.open; close it there first"
    elif owner.startswith(COPY):
        text = f"{path} is being copied by {owner}; wait until that has finished, or stop it"
    else:
        text = f"{path} is in use by the broker at {owner}; connect to that broker, or stop it and try again"
    return StoreOwnedError(text, owner)
