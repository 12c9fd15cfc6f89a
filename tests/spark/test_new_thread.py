"""What stops jobs after an interrupt is repeated if it gets no answer."""

from __future__ import annotations

import threading

import pytest
from py4j.protocol import Py4JNetworkError

from holtmq.spark.new_thread import ATTEMPTS, in_new_thread


def failing(times: int, calls: list[str]) -> None:
    calls.append(threading.current_thread().name)
    if len(calls) <= times:
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_call_without_an_answer_is_repeated_in_another_thread() -> None:
    calls: list[str] = []
    in_new_thread(lambda: failing(ATTEMPTS - 1, calls))
    assert len(calls) == ATTEMPTS
    assert threading.current_thread().name not in calls


def test_a_call_that_never_gets_an_answer_fails() -> None:
    with pytest.raises(Py4JNetworkError, match="empty"):
        in_new_thread(lambda: failing(ATTEMPTS, []))


def test_any_other_error_is_raised_at_once() -> None:
    calls: list[str] = []

    def refuse() -> None:
        calls.append("refused")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_new_thread(refuse)
    assert calls == ["refused"]
