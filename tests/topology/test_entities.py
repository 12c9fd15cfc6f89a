"""Exchanges, queues and bindings as values."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import pytest

from holtmq import Binding, Exchange, InvalidValueError, Queue
from holtmq.table import FieldValue

NOW = datetime(2024, 1, 2, tzinfo=UTC)
# Callers who do not check types can pass anything.
binding: Any = Binding
exchange: Any = Exchange
queue: Any = Queue


def test_a_binding_is_frozen() -> None:
    frozen = Binding("x", "q", "k")
    with pytest.raises(FrozenInstanceError):
        frozen.routing_key = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        frozen.arguments["a"] = 1  # type: ignore[index]


def test_creation_time_metadata_and_extras_take_no_part_in_identity() -> None:
    plain = Binding("x", "q", "k", {"a": 1})
    dressed = Binding("x", "q", "k", {"a": 1}, created_at=NOW, metadata={"plugin": {"on": True}}, extra={"e": 1})
    assert plain == dressed
    assert hash(plain) == hash(dressed)


@pytest.mark.parametrize(
    "other",
    [
        Binding("y", "q", "k", {"a": 1}),
        Binding("x", "r", "k", {"a": 1}),
        Binding("x", "q", "l", {"a": 1}),
        Binding("x", "q", "k", {"a": 2}),
        Binding("x", "q", "k", {"a": "1"}),
        Binding("x", "q", "k", {"a": 1.0}),
        Binding("x", "q", "k", {"a": 1, "b": 1}),
        Binding("x", "q", "k"),
        Binding("x", "q", "k", {"a": 1}, "exchange"),
        Binding("x", "q", "k", {"a": 1}, vhost="shop"),
    ],
)
def test_each_part_of_the_identity_makes_a_difference(other: Binding) -> None:
    assert Binding("x", "q", "k", {"a": 1}) != other


def test_no_arguments_and_empty_arguments_are_one() -> None:
    assert Binding("x", "q", "k") == Binding("x", "q", "k", {}) == Binding("x", "q", "k", None)  # type: ignore[arg-type]


def test_a_binding_pickled_in_another_process_is_found_among_ours() -> None:
    program = (
        "import pickle, sys; from holtmq import Binding; sys.stdout.buffer.write(pickle.dumps(Binding('x','q','k',{'a':[1]})))"
    )
    pickled = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60).stdout
    ours = {Binding("x", "q", "k", {"a": [1]}): "found"}
    assert ours[pickle.loads(pickled)] == "found"


def test_settings_of_a_binding_are_read_from_its_arguments() -> None:
    with_settings = Binding("x", "q", "k", {"x-priority": 7, "x-message-ttl": 1500})
    assert (with_settings.priority, with_settings.ttl_ms) == (7, 1500)
    assert (Binding("x", "q").priority, Binding("x", "q").ttl_ms) == (None, None)


def test_under_with_x_the_arguments_are_criteria_and_no_settings() -> None:
    with_criteria = Binding("x", "q", "", {"x-match": "all-with-x", "x-priority": "high", "x-message-ttl": 5})
    assert (with_criteria.priority, with_criteria.ttl_ms) == (None, None)


@pytest.mark.parametrize("name", ["x-priority", "x-message-ttl"])
@pytest.mark.parametrize("value", [-1, "high", 1.5, True, None, 2**40])
def test_a_bad_setting_is_refused(name: str, value: FieldValue) -> None:
    with pytest.raises(InvalidValueError, match=f"binding argument '{name}' must be an integer from 0 to"):
        Binding("x", "q", "k", {name: value})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: binding("x", "q", 5), "a routing key must be a string, got integer 5"),
        (lambda: Binding("x", "q", "k" * 256), "a routing key must be at most 255 bytes in UTF-8, got 256 bytes"),
        (lambda: binding(None, "q"), "the source of a binding must be a string, got null"),
        (lambda: binding("x", b"q"), "the destination of a binding must be a string, got bytes b'q'"),
        (lambda: binding("x", "q", "k", {}, "topic"), "must be 'queue' or 'exchange', got string 'topic'"),
        (lambda: binding("x", "q", "k", [1]), "must be a table (a mapping), got array of 1"),
        (lambda: Exchange("x" * 256), "the name of an exchange must be at most 255 bytes"),
        (lambda: exchange("x", 7), "the type of an exchange must be a string, got integer 7"),
        (lambda: Exchange("x", arguments={"alternate-exchange": 5}), "must be the name of an exchange, got integer 5"),
        (lambda: queue(["q"]), "the name of a queue must be a string, got array of 1"),
    ],
)
def test_bad_values_are_refused_at_birth(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValueError) as refusal:
        build()
    assert message in str(refusal.value)
    assert refusal.value.reply_code == 406
