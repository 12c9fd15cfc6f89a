"""Logs of the broker: one line per event, as text or as JSON.

Clients choose names, paths and properties that appear in logs. The formatters escape what could forge a line, hide one, or
control a terminal, so that callers log values as they are.

A thread writes the lines: a terminal or a pipe that nobody reads must not stop the broker.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from holtmq.printable import printable

MAX_CHARACTERS = 8192
"""Maximum length of the text of an event. The rest is cut."""
INDENT = "    "
MAX_WAITING = 10_000
"""Events that wait to be written. Further ones are dropped and counted."""
FLUSH_S = 2.0
"""Longest time to wait for the last lines when the broker stops."""


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


class BackgroundHandler(logging.Handler):
    """Passes events on to a handler in a thread of its own, and never waits."""

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self._target = target
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="holtmq-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def finish(self) -> None:
        """Write what is waiting, unless that takes too long."""
        try:
            self._waiting.put(None, timeout=FLUSH_S)
        except queue.Full:
            return
        self._thread.join(FLUSH_S)

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._target.handle(record)
            if self._dropped and self._waiting.empty():
                dropped, self._dropped = self._dropped, 0
                text = f"{dropped} log entries were dropped, because they could not be written fast enough"
                self._target.handle(logging.LogRecord("holtmq", logging.WARNING, "", 0, text, None, None))


@contextmanager
def logging_to_stderr(log_format: str, level: str) -> Iterator[None]:
    """Log to stderr as `text` or `json`, from the given level up, while the block runs.

    Libraries log errors only. Any client can cause their warnings.
    """
    target = logging.StreamHandler(sys.stderr)
    target.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler = BackgroundHandler(target)
    for name, lowest in (("holtmq", level.upper()), ("uvicorn", "ERROR"), ("asyncio", "ERROR")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(lowest)
        logger.propagate = False
    try:
        yield
    finally:
        handler.finish()


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
