"""Announces a pipeline job to a broker, whose Pipeline page lists it. Best effort: a job never fails or waits for this."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any

from holtmq.client.blocking_connection import RefusedError
from holtmq.client.http_api import ApiError, HttpApi
from holtmq.errors import HoltmqError
from holtmq.topology import DEFAULT_VHOST

PERIOD_S = 10.0
LAST_WORD_S, FIRST_WORD_S = 2.0, 0.5
"""How long the end of a job waits until the broker has heard of it: one that has answered before, and one that has not."""
FINAL = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""Answers that will not change while a job runs: the user lacks rights, or this is another API."""
MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the broker is told about a job."""

    find: Callable[[], HttpApi | None] | None
    """Returns the HTTP API of the broker, or None if it has none. None instead of a function to announce nothing."""
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
        self._find = about.find
        self._api: HttpApi | None = None
        self._is_heard = False
        """Whether the broker has answered."""
        self._place = ("runs", about.vhost, str(uuid.uuid4()))
        self._about = {"job": job, "input": about.input, "output": about.output, "queue": about.queue}
        self._rows = rows
        self._lag = lag
        self._last_rows = 0
        self._explain = explain
        self._end: dict[str, Any] = {}
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._announce, name="announcer", daemon=True)

    def start(self) -> RunAnnouncer:
        """Announce that the job runs, now and then, until it ends."""
        if self._find is not None:
            self._thread.start()
        return self

    def end(self, state: str, reason: str | None = None) -> None:
        """Announce how the job ended: "finished", "interrupted", or "failed" for a reason. The first call counts."""
        if self._has_ended.is_set():
            return
        self._end = {"state": state} if reason is None else {"state": state, "error": reason[:MAX_TEXT]}
        self._has_ended.set()
        if self._find is not None:
            self._thread.join(LAST_WORD_S if self._is_heard else FIRST_WORD_S)

    def __enter__(self) -> RunAnnouncer:
        return self.start()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None:
            self.end("finished")
        elif (reason := self._explain(error)) is None:
            self.end("interrupted")
        else:
            self.end("failed", reason)

    def _announce(self) -> None:
        while not self._has_ended.is_set():
            if not self._try({"state": "running"}):
                return
            self._has_ended.wait(PERIOD_S)
        self._try(self._end)

    def _try(self, state: dict[str, Any]) -> bool:
        """Announce a state. Return False if trying again is of no use. A broker that starts again has another HTTP API."""
        assert self._find is not None
        try:
            self._api = self._api or self._find()
            if self._api is None:
                return False
            self._put(self._api, state)
        except ApiError as error:
            self._api = None
            return error.status not in FINAL
        except RefusedError:
            return False
        except HoltmqError:
            return True
        self._is_heard = True
        return True

    def _put(self, api: HttpApi, state: dict[str, Any]) -> None:
        about: dict[str, Any] = {name: text[:MAX_TEXT] for name, text in self._about.items()}
        with suppress(Exception):  # Spark counts the rows, and may be stopped or raise anything: the state matters more
            self._last_rows = self._rows()
            if (lag := self._lag()) is not None:
                about["lag"] = lag
        api.put(*self._place, body={**about, "rows": self._last_rows, **state})
