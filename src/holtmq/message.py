"""A message: its content (bytes, with text and JSON in and out), and how it stands in a file."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias

from holtmq.errors import InvalidValueError
from holtmq.table import describe

Content: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | int | float | bool | None
ID_CLOCK_BITS = 20
"""Ids only grow, and tell the time of arrival: they start at the clock's milliseconds shifted by this."""
IN_MEMORY, ALONE, SHARED = 0, 1, 2
"""Where a broker has filed a message: nowhere; as one row that names its only queue; or with a row for each queue."""
TEXT = '{"content_type": "text/plain; charset=utf-8"}'
JSON = '{"content_type": "application/json"}'


def encode(content: Content) -> tuple[str | None, bytes]:
    """The properties of a message as JSON text, and its body: bytes as they are, a text as UTF-8, all else as JSON."""
    if isinstance(content, bytes):
        return None, content
    if isinstance(content, bytearray | memoryview):
        return None, bytes(content)
    if isinstance(content, str):
        return TEXT, content.encode()
    try:
        return JSON, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"a message must be bytes, text or JSON, got {describe(content)}") from error


class StoredRow(NamedTuple):
    """A message of a queue as the file has it. One that the embedded library put has JSON instead of AMQP's own bytes."""

    id: int
    exchange: str
    routing_key: str
    priority: int
    expires_at: int | None
    attempts: int
    headers: str | None
    properties: str | None
    raw_properties: bytes | None
    body: bytes
