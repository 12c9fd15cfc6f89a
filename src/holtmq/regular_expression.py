"""Regular expressions that users supply: in policies, permissions and the filters of lists.

They run on RE2, whose time is linear in the length of the text, so that no expression can stall the broker. RE2 is imported
when the first expression is compiled: routing itself needs the standard library alone.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from holtmq.errors import HoltmqError, InvalidValueError

log = logging.getLogger(__name__)

MEMORY_BYTES = 1024 * 1024
"""What one expression may use, compiled and while it searches. A larger one is refused."""
REMEMBERED = 1024
UNSUPPORTED = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "an atomic group",
    "(?(": "a condition",
    "(?R": "recursion",
    "(?P": "a backreference",
    "\\k": "a backreference",
    **{f"\\{digit}": "a backreference" for digit in range(1, 10)},
}
"""Parts of Perl's syntax that a linear-time engine cannot have, by how they start."""


class RegularExpression:
    """A compiled expression. It matches a text if it is found anywhere in it, as in RabbitMQ."""

    __slots__ = ("_search",)

    def __init__(self, text: str, *, ignores_case: bool = False) -> None:
        """Compile `text`; raise InvalidValueError if it is not an expression that RE2 supports."""
        re2 = _engine()
        options = re2.Options()
        options.max_mem = MEMORY_BYTES
        options.case_sensitive = not ignores_case
        options.never_capture = True
        options.log_errors = False
        try:
            self._search = re2.compile(text.encode(), options).search
        except UnicodeEncodeError as error:
            raise InvalidValueError(f"expected a regular expression, got {text!r:.200}: {error}") from error
        except re2.error as error:
            raise InvalidValueError(f"expected a regular expression, got {text!r:.200}: {_problem(error)}") from error

    def matches(self, text: str) -> bool:
        """Return whether the expression is found in the text."""
        return self._search(text.encode(errors="surrogatepass")) is not None


def escape(text: str) -> str:
    """Return an expression that matches `text` literally."""
    escaped: str = _engine().escape(text)
    return escaped


@lru_cache(maxsize=REMEMBERED)
def stored_expression(text: str, owner: str) -> RegularExpression | None:
    """Compile an expression that was accepted before, perhaps by another version; report one that is not supported.

    Return None for the latter: it matches nothing. `owner` says what the expression belongs to.
    """
    try:
        return RegularExpression(text)
    except InvalidValueError as error:
        log.error("%s matches nothing: %s; replace the expression", owner, error)
        return None


def _engine() -> Any:
    try:
        import re2
    except ImportError as error:
        raise HoltmqError(
            "policies and permissions need the package google-re2, which is not installed: pip install google-re2"
        ) from error
    return re2


def _problem(error: Exception) -> str:
    """Return what RE2 found, with the name of a feature that it does not have."""
    (found,) = error.args
    text = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
    kind, _, part = text.partition(": ")
    name = next((name for start, name in UNSUPPORTED.items() if part.startswith(start)), None)
    if name is None or kind not in ("invalid perl operator", "invalid escape sequence"):
        return text
    return f"{name} ({part}) is not supported, because it can take exponential time"
