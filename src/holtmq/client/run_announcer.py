"""Announces a pipeline job to a broker, whose Pipeline page lists it. Best effort: a job never fails or waits for this."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from holtmq.client.http_api import HttpApi
from holtmq.errors import HoltmqError
from holtmq.topology import DEFAULT_VHOST

PERIOD_S = 10.0
LAST_WORD_S = 5.0
"""How long the end of a job waits until the broker has heard of it."""
MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the broker is told about a job."""

    api: HttpApi | None
    """The HTTP API of the broker, or None to announce nothing."""
    input: str
    output: str = ""
    vhost: str = DEFAULT_VHOST
    queue: str = ""


class RunAnnouncer:
    """Tells a broker in a background thread that a job runs, how many rows it has processed, and how it ended.

    `lag` returns how many messages the job has not processed yet, or None if it does not know. `explain` turns the error of a
    job into text, or into None if the user has interrupted the job.
    """

    def __init__(
        self,
        job: str,
        about: Announcement,
        rows: Callable[[], int],
        explain: Callable[[BaseException], str | None],
        lag: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._api = about.api
        self._place = ("runs", about.vhost, str(uuid.uuid4()))
        self._about = {"job": job, "input": about.input, "output": about.output, "queue": about.queue}
        self._rows = rows
        self._lag = lag
        self._last_rows = 0
        self._explain = explain
        self._end: dict[str, Any] = {}
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._announce, name="announcer", daemon=True)

    def __enter__(self) -> RunAnnouncer:
        if self._api is not None:
            self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        reason = self._explain(error) if error is not None else None
        if error is None:
            self._end = {"state": "finished"}
        elif reason is None:
            self._end = {"state": "interrupted"}
        else:
            self._end = {"state": "failed", "error": reason[:MAX_TEXT]}
        self._has_ended.set()
        if self._api is not None:
            self._thread.join(LAST_WORD_S)

    def _announce(self) -> None:
        while not self._has_ended.is_set():
            self._put({"state": "running"})
            self._has_ended.wait(PERIOD_S)
        self._put(self._end)

    def _put(self, state: dict[str, Any]) -> None:
        assert self._api is not None
        about: dict[str, Any] = {name: text[:MAX_TEXT] for name, text in self._about.items()}
        with suppress(Exception):  # Spark counts the rows, and may be stopped or raise anything: the state matters more
            self._last_rows = self._rows()
            if (lag := self._lag()) is not None:
                about["lag"] = lag
        with suppress(HoltmqError):
            self._api.put(*self._place, body={**about, "rows": self._last_rows, **state})
