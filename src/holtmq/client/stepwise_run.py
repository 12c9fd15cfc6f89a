"""Announces a run of which no process lives from its start to its end, step by step. Best effort, like `run_announcer`."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holtmq.client.run_announcer import MAX_TEXT, Announcement
from holtmq.errors import HoltmqError

WAIT_S = 1.0
GIVEN_UP_S = 60.0
"""A broker that could not be told of a step is left alone for so long: a stream may have several steps per second."""


@dataclass(frozen=True, slots=True)
class StepwiseRun:
    """What an application does in one place: all its runs with the same description are one."""

    application: str
    """What identifies the application."""
    job: str
    about: Announcement
    _id: str = field(init=False)

    def __post_init__(self) -> None:
        about = "\n".join((self.job, self.about.input, self.about.output, self.about.vhost))
        object.__setattr__(self, "_id", str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.application}\n{about}")))

    def announce(self, state: str, rows: int = 0, error: str | None = None) -> None:
        """Tell the broker about a step and its rows. Wait at most a second, because this process may end next."""
        if self.about.find is None or self._is_given_up():
            return
        body: dict[str, Any] = {
            "job": self.job, "input": self.about.input[:MAX_TEXT], "output": self.about.output[:MAX_TEXT],
            "queue": self.about.queue[:MAX_TEXT], "rows": rows, "state": state, "stepwise": True,
        }  # fmt: skip
        if error is not None:
            body["error"] = error[:MAX_TEXT]
        is_told = threading.Event()
        thread = threading.Thread(target=self._put, args=(body, is_told), name="announcer", daemon=True)
        thread.start()
        thread.join(WAIT_S)
        if not is_told.is_set():
            self._give_up()

    def _put(self, body: dict[str, Any], is_told: threading.Event) -> None:
        assert self.about.find is not None
        try:
            api = self.about.find()
            if api is not None:
                api.put("runs", self.about.vhost, self._id, body=body)
                is_told.set()
        except HoltmqError:
            return

    # The next step may be another process on this machine. The name of the file is a secret, because the application's id is.

    def _is_given_up(self) -> bool:
        try:
            return time.time() - self._mark().stat().st_mtime < GIVEN_UP_S
        except OSError:
            return False

    def _give_up(self) -> None:
        try:
            self._mark().touch(mode=0o600)
        except OSError:  # as on a full disk
            return

    def _mark(self) -> Path:
        return Path(tempfile.gettempdir()) / f"holtmq-unheard-{uuid.uuid5(uuid.NAMESPACE_URL, self.application + self._id)}"
