"""The runs of pipeline jobs. A job announces itself and its progress; the broker adds how far it lags behind its queue."""

from __future__ import annotations

import time
from typing import Any

from holtmq.errors import InvalidValueError
from holtmq.management.listing import Items
from holtmq.management.operations import BodyFields, Call, Outcome, api, created
from holtmq.management.pipeline_runs import STATES, Run
from holtmq.management.views import moment

MAX_TEXT = 1000
MAX_ROWS = 2**53
"""The largest number that all readers of JSON represent exactly."""
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
        "error": {"type": "string"},
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
    """Announce a run of a pipeline job, or its progress. The broker keeps the latest runs until it stops."""
    fields, now = call.fields(), time.time()
    state, rows = fields.text("state"), fields.integer("rows", 0)
    if state not in STATES:
        raise InvalidValueError(f"state: expected one of {', '.join(STATES)}, got {state[:80]!r}")
    if not 0 <= rows <= MAX_ROWS:
        raise InvalidValueError(f"rows: expected a number from 0 to {MAX_ROWS}, got {rows}")
    run = Run(
        _short("id", call.path["id"]), call.vhost.name, call.caller.user.name, _text(fields, "job"), _text(fields, "input"),
        _text(fields, "output"), _text(fields, "queue") or None, rows, state, _text(fields, "error") or None, now, now,
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
        "duration_ms": int(1000 * ((now if state == "running" else run.updated_at) - run.started_at)),
    }


def _lag(call: Call, run: Run) -> int | None:
    """Return how many messages of the job's queue are not acknowledged, or None if it reads no queue."""
    vhost = call.node.broker.vhosts.get(run.vhost)
    queue = vhost.queues.get(run.queue) if vhost is not None and run.queue is not None else None
    return None if queue is None else queue.message_count + queue.unsettled
