"""A message with all of its deliveries, as it is copied from one store to another."""

from __future__ import annotations

from typing import NamedTuple


class CopiedDelivery(NamedTuple):
    """A message in a queue."""

    queue_id: int
    state: int
    priority: int
    attempts: int
    due_at: int | None
    expires_at: int | None
    locked_at: int | None
    settled_at: int | None


class CopiedMessage(NamedTuple):
    id: int
    key: str | None
    """None if the message is damaged and has none."""
    created_at: int
    exchange: str
    headers: str | None
    properties: str | None
    raw_properties: bytes | None
    body: bytes
    checksum: int | None
    deliveries: tuple[CopiedDelivery, ...]


CONTENT_COLUMNS = 9
"""The columns of a message, before those of its delivery."""
