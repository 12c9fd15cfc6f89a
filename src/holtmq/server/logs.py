"""Logs of the broker: one line per event, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class TextFormatter(logging.Formatter):
    """Lines for people: time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_moment(record)} {record.levelname.lower():7} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Lines for programs: a JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "from": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)


def set_up_logs(log_format: str, level: str) -> None:
    """Log to stderr as `text` or `json`, from the given level up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger("holtmq")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
