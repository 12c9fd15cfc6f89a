"""Runs of pipeline jobs over HTTP: announced, bounded, and visible to those who can see the vhost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holtmq.client.http_api import HttpApi
from holtmq.client.run_announcer import Announcement, RunAnnouncer
from holtmq.errors import NotAllowedError
from holtmq.management import pipeline_runs
from holtmq.management.pipeline_runs import LOST_S, Run, Runs
from tests.deadline import eventually
from tests.management.conftest import Node
from tests.management.http import Http

ARCHIVE = {
    "job": "archive",
    "input": "queue orders",
    "output": "lake/orders",
    "queue": "orders",
    "rows": 12,
    "state": "running",
}


def run(number: int, state: str = "finished", user: str = "guest") -> Run:
    return Run(str(number), "/", user, "route", "in", "out", None, 0, state, None, number, number)


def explain(error: BaseException) -> str | None:
    return None if isinstance(error, KeyboardInterrupt) else str(error).upper()


def test_a_run_is_announced_updated_and_listed_with_the_lag_of_its_queue(node: Node, http: Http) -> None:
    http.put("/api/queues/%2F/orders", {"durable": True})
    for _ in range(3):
        http.post(
            "/api/exchanges/%2F/amq.default/publish",
            {"routing_key": "orders", "payload": "", "payload_encoding": "string", "properties": {}},
        )
    assert http.put("/api/runs/%2F/one", ARCHIVE) == 201
    (found,) = http.get("/api/runs")
    assert {**found, **ARCHIVE} == found
    assert (found["lag"], found["user"], found["vhost"]) == (3, "guest", "/")
    assert http.put("/api/runs/%2F/one", {**ARCHIVE, "rows": 20, "state": "failed", "error": "no disk"}) == 204
    (ended,) = http.get("/api/runs")
    assert (ended["rows"], ended["state"], ended["error"], ended["lag"]) == (20, "failed", "no disk", None)
    assert ended["started_at"] == found["started_at"]


def test_the_rows_of_the_steps_of_a_stepwise_run_are_added_up(http: Http) -> None:
    for rows in (3, 4, 2**53):
        http.put("/api/runs/%2F/one", {**ARCHIVE, "rows": rows, "stepwise": True})
        if rows == 4:
            assert [run["rows"] for run in http.get("/api/runs")] == [7]
    assert [run["rows"] for run in http.get("/api/runs")] == [2**53]


def test_the_lag_of_a_job_on_a_stream_is_what_the_job_announces(node: Node, http: Http) -> None:
    http.put("/api/queues/%2F/orders", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    with node.connect() as amqp:
        amqp.channel().put("orders", b"m", b"m", b"m")
        amqp.channel(2).settle()
    for announced, shown in (({}, None), ({"lag": 2}, 2), ({"lag": 0}, 0), ({"lag": 1, "state": "finished"}, None)):
        http.put("/api/runs/%2F/one", {**ARCHIVE, **announced})
        assert [run["lag"] for run in http.get("/api/runs")] == [shown]


def test_a_run_is_for_those_who_can_enter_its_vhost_and_changed_by_its_user_only(http: Http) -> None:
    http.put("/api/vhosts/shop")
    for user, tag in (("clerk", "management"), ("watcher", "monitoring"), ("nobody", "management"), ("untagged", "")):
        http.put(f"/api/users/{user}", {"password": "p", "tags": tag})
    for user in ("clerk", "untagged"):
        http.put(f"/api/permissions/shop/{user}", {"configure": "", "write": "", "read": ""})
    clerk, watcher, nobody, untagged = (http.as_user(f"{name}:p") for name in ("clerk", "watcher", "nobody", "untagged"))
    assert clerk.put("/api/runs/shop/one", ARCHIVE) == 201
    assert nobody.put("/api/runs/shop/two", ARCHIVE) == 401
    assert untagged.put("/api/runs/shop/two", ARCHIVE) == 401
    assert clerk.put("/api/runs/%2F/two", ARCHIVE) == 401
    assert http.put("/api/runs/shop/one", ARCHIVE) == 401
    assert clerk.put("/api/runs/nowhere/two", ARCHIVE) == 404
    assert [len(user.get("/api/runs")) for user in (clerk, watcher, nobody, http)] == [1, 1, 0, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "lost"},
        {"rows": -1},
        {"rows": 2**60},
        {"input": "x" * 1001},
        {"lag": -1},
        {"lag": None},
        {"job": 3},
        {"rows": "many"},
        {"error": []},
        {"stepwise": 1},
    ],
)
def test_a_wrong_announcement_is_refused(http: Http, wrong: dict[str, Any]) -> None:
    assert http.put("/api/runs/%2F/one", {**ARCHIVE, **wrong}) == 400
    assert http.get("/api/runs") == []


def test_the_number_of_runs_is_bounded_and_those_that_run_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_runs, "MAX_RUNS", 3)
    known = Runs()
    for number, state in enumerate(["running", "finished", "finished", "finished", "running", "running"]):
        known.put(run(number, state))
    assert [each.id for each in known] == ["0", "4", "5"]
    known.put(run(6, "running"))
    assert [each.id for each in known] == ["4", "5", "6"]
    with pytest.raises(NotAllowedError, match="the run '6' belongs to user 'guest', got 'other'"):
        known.put(run(6, user="other"))


def test_a_job_that_is_silent_is_lost() -> None:
    assert run(0, "running").state_at(LOST_S) == "running"
    assert run(0, "running").state_at(LOST_S + 1) == "lost"
    assert run(0, "finished").state_at(LOST_S + 1) == "finished"


def test_a_stepwise_run_that_is_silent_is_not_lost() -> None:
    stepwise = replace(run(0, "running"), is_stepwise=True)
    assert [stepwise.state_at(now) for now in (LOST_S, LOST_S + 1)] == ["running", "silent"]
    assert replace(stepwise, state="failed").state_at(LOST_S + 1) == "failed"


def test_a_run_that_was_only_planned_has_no_duration_and_is_never_lost(http: Http) -> None:
    http.put("/api/runs/%2F/one", {**ARCHIVE, "state": "planned", "stepwise": True})
    (found,) = http.get("/api/runs")
    assert (found["state"], found["rows"], found["duration_ms"], found["lag"]) == ("planned", 12, None, None)
    assert replace(run(0, "planned"), is_stepwise=True).state_at(LOST_S + 1) == "planned"


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [(None, "finished", None), (KeyboardInterrupt(), "interrupted", None), (OSError("no disk"), "failed", "NO DISK")],
)
def test_a_job_announces_how_it_ended(http: Http, error: BaseException | None, state: str, text: str | None) -> None:
    about = Announcement(lambda: HttpApi(http.base, "guest", "guest"), "in", "out")
    try:
        with RunAnnouncer("route", about, lambda: 7, explain):
            if error is not None:
                raise error
    except (KeyboardInterrupt, OSError):
        pass
    (found,) = http.get("/api/runs")
    assert (found["job"], found["rows"], found["state"], found["error"]) == ("route", 7, state, text)


def test_a_job_announces_how_it_ended_even_if_its_rows_cannot_be_counted(http: Http) -> None:
    def count() -> int:
        raise RuntimeError("the session is stopped")

    with RunAnnouncer("route", Announcement(lambda: HttpApi(http.base, "guest", "guest"), "in"), count, explain):
        pass
    (found,) = http.get("/api/runs")
    assert (found["rows"], found["state"]) == (0, "finished")


def test_a_job_announces_its_lag(http: Http) -> None:
    about = Announcement(lambda: HttpApi(http.base, "guest", "guest"), "in", "out", queue="orders")
    with RunAnnouncer("archive", about, lambda: 7, explain, lambda: 5):
        assert eventually(lambda: [run["lag"] for run in http.get("/api/runs")], "the announcement") == [5]


def test_a_job_does_not_depend_on_the_broker_that_hears_of_it() -> None:
    nobody = HttpApi("http://127.0.0.1:1", "guest", "guest")
    with RunAnnouncer("route", Announcement(lambda: nobody, "in"), lambda: 7, explain):
        pass
    with RunAnnouncer("route", Announcement(None, "in"), lambda: 7, explain):
        pass
