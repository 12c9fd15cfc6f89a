"""The content of a message: bytes, text or JSON, and its encoding."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from holtmq.errors import InvalidValueError
from holtmq.table import describe

Content: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | int | float | bool | None
TEXT = '{"content_type": "text/plain; charset=utf-8"}'
JSON = '{"content_type": "application/json"}'


def encode(content: Content) -> tuple[str | None, bytes]:
    """Return the properties, as JSON text, and the body: bytes unchanged, text in UTF-8, anything else as JSON."""
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
