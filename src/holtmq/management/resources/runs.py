"""The runs of pipeline jobs. A job announces itself, its progress and its lag.

For a job that does not know its lag, the broker looks at the queue that it reads.
"""

from __future__ import annotations

import time
from typing import Any

from holtmq.broker.stream_queue import StreamQueue
from holtmq.errors import InvalidValueError
from holtmq.management.listing import Items
from holtmq.management.operations import BodyFields, Call, Outcome, api, created
from holtmq.management.pipeline_runs import MAX_ROWS, STATES, Run
from holtmq.management.views import moment

MAX_TEXT = 1000
RUN = {
    "type": "object",
    "required": ["job", "state"],
    "properties": {
        "job": {"type": "string"},
        "state": {"enum": list(STATES)},
        "input": {"type": "string"},
        "output": {"type": "string"},
        "queue": {"type": "string"},
        "rows": {"type": "integer"},
        "lag": {"type": "integer"},
        "error": {"type": "string"},
        "stepwise": {"type": "boolean"},
    },
}


@api.collection("/api/runs")
def runs(call: Call) -> Items[Run]:
    """List the runs of pipeline jobs in all vhosts that the user can access, latest first."""
    vhosts = {vhost.name for vhost in call.vhosts}
    found = [run for run in call.runs if run.vhost in vhosts or call.caller.sees_all_vhosts()]
    now = time.time()
    return Items(found, lambda run: _view(call, run, now), lambda run: (run.job, run.id), lambda run: -run.started_at)


@api.add("PUT", "/api/runs/{vhost}/{id}", body=RUN, answers={201: None, 204: None})
def announce_run(call: Call) -> Outcome:
    """Announce a run of a pipeline job, or its progress. The broker keeps the latest runs until it stops.

    A stepwise run announces only its steps: their rows are added up, and it is "silent" in between, not "lost". The state
    "planned" is for a run of which nobody learns when it starts and ends: it has no duration.
    """
    fields, now = call.fields(), time.time()
    state, rows = fields.text("state"), fields.integer("rows", 0)
    if state not in STATES:
        raise InvalidValueError(f"state: expected one of {', '.join(STATES)}, got {state[:80]!r}")
    lag = fields.integer("lag", 0) if fields.has("lag") else None
    for name, number in (("rows", rows), ("lag", lag or 0)):
        if not 0 <= number <= MAX_ROWS:
            raise InvalidValueError(f"{name}: expected a number from 0 to {MAX_ROWS}, got {number}")
    run = Run(
        _short("id", call.path["id"]), call.vhost.name, call.caller.user.name, _text(fields, "job"), _text(fields, "input"),
        _text(fields, "output"), _text(fields, "queue") or None, rows, state, _text(fields, "error") or None, now, now, lag,
        fields.flag("stepwise", default=False),
    )  # fmt: skip
    return created(is_new=call.runs.put(run))


def _text(fields: BodyFields, name: str) -> str:
    return _short(name, fields.text(name, None if name == "job" else ""))


def _short(name: str, text: str) -> str:
    if len(text) > MAX_TEXT:
        raise InvalidValueError(f"{name}: expected at most {MAX_TEXT} characters, got {len(text)}")
    return text


def _view(call: Call, run: Run, now: float) -> dict[str, Any]:
    state = run.state_at(now)
    return {
        "id": run.id,
        "vhost": run.vhost,
        "user": run.user,
        "job": run.job,
        "input": run.input,
        "output": run.output,
        "queue": run.queue,
        "rows": run.rows,
        "state": state,
        "error": run.error,
        "lag": _lag(call, run) if state == "running" else None,
        "started_at": moment(run.started_at),
        "updated_at": moment(run.updated_at),
        "duration_ms": run.duration_ms_at(now),
    }


def _lag(call: Call, run: Run) -> int | None:
    """Return the lag that the job announces, or else the number of messages of its queue that are not acknowledged.

    Return None if it reads no queue, or a stream: nothing is acknowledged there, and only the job knows where it is.
    """
    if run.lag is not None:
        return run.lag
    vhost = call.node.broker.vhosts.get(run.vhost)
    queue = vhost.queues.get(run.queue) if vhost is not None and run.queue is not None else None
    return None if queue is None or isinstance(queue, StreamQueue) else queue.message_count + queue.unsettled
