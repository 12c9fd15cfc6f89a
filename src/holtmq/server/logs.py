"""Logs of the broker: one line per event, as text or as JSON.

Clients choose names, paths and properties that appear in logs. The formatters escape what could forge a line, hide one, or
control a terminal, so that callers log values as they are.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from holtmq.printable import printable

MAX_CHARACTERS = 8192
"""Maximum length of the text of an event. The rest is cut."""
INDENT = "    "


class TextFormatter(logging.Formatter):
    """Lines for people: time, level and message. The lines of a traceback are indented; all others begin with a time."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{_moment(record)} {record.levelname.lower():7} {printable(_shortened(record.getMessage()))}"]
        if record.exc_info:
            lines += [INDENT + printable(_shortened(line)) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Lines for programs: a JSON object per event, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "from": record.name,
            "event": _shortened(record.getMessage()),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)


def set_up_logs(log_format: str, level: str) -> None:
    """Log to stderr as `text` or `json`, from the given level up.

    Libraries log errors only. Any client can cause their warnings.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for name, lowest in (("holtmq", level.upper()), ("uvicorn", "ERROR"), ("asyncio", "ERROR")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(lowest)
        logger.propagate = False


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
