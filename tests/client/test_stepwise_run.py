"""A run that announces its steps only."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holtmq.client import stepwise_run
from holtmq.client.http_api import HttpApi
from holtmq.client.run_announcer import Announcement
from holtmq.client.stepwise_run import StepwiseRun
from tests.management.conftest import Node, running_node


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        yield node


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_steps_of_an_application_in_one_place_are_one_run(node: Node) -> None:
    api = HttpApi(node.http.base, "guest", "guest")
    for application, place in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "x")):
        StepwiseRun(application, "write", Announcement(lambda: api, "a DataFrame", place)).announce("finished", 2)
    found = [(run["output"], run["rows"]) for run in node.http.get("/api/runs")]
    assert sorted(found) == [("x", 2), ("x", 4), ("y", 2)]


def test_a_broker_that_does_not_answer_is_left_alone_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise_run, "WAIT_S", 0.01)
    tries: list[str] = []
    answers = threading.Event()

    def find(who: str) -> None:
        tries.append(who)
        answers.wait()

    for who in ("write", "read"):
        StepwiseRun("a", who, Announcement(partial(find, who), "in")).announce("running")
        StepwiseRun("a", who, Announcement(partial(find, who), "in")).announce("running")
    answers.set()
    assert tries == ["write", "read"]
    monkeypatch.setattr(stepwise_run, "GIVEN_UP_S", -1.0)
    StepwiseRun("a", "read", Announcement(lambda: find("later"), "in")).announce("running")
    assert tries[-1] == "later"


def test_a_port_where_nothing_listens_and_a_broker_without_an_api_are_no_errors() -> None:
    nobody = HttpApi("http://127.0.0.1:1", "guest", "guest")
    for find in (lambda: nobody, lambda: None, None):
        StepwiseRun("a", "write", Announcement(find, "in")).announce("failed", 1, "x" * 5000)
