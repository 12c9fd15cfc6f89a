"""A message's content: bytes, with text and JSON in and out."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from holtmq.errors import InvalidValueError
from holtmq.table import describe

Content: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | int | float | bool | None
TEXT = '{"content_type": "text/plain; charset=utf-8"}'
JSON = '{"content_type": "application/json"}'


def encode(content: Content) -> tuple[bytes, str | None]:
    """The body of a message and its properties as JSON text: bytes as they are, a text as UTF-8, all else as JSON."""
    if isinstance(content, bytes):
        return content, None
    if isinstance(content, bytearray | memoryview):
        return bytes(content), None
    if isinstance(content, str):
        return content.encode(), TEXT
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(), JSON
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"a message must be bytes, text or JSON, got {describe(content)}") from error
