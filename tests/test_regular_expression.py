"""Regular expressions that users supply: what they match, what is refused, and that none can stall the broker."""

from __future__ import annotations

import logging

import pytest

from holtmq.broker.authorization import fits
from holtmq.errors import DefinitionsError, InvalidValueError
from holtmq.regular_expression import RegularExpression, escape, stored_expression
from holtmq.routing import Router
from holtmq.topology import Binding, Exchange, Policy, Queue, Registry, Topology
from tests.peers.rabbitmq import RabbitMQ, binary

SAME = [
    ("b", "abc", True),
    ("^b", "abc", False),
    ("^b", "a\nb", False),
    ("a.c", "a\nc", False),
    ("^a$|^b$", "b", True),
    (r"^\d$", "٣", False),
    (r"^\w$", "é", False),
    ("^a{,3}$", "aa", False),
    (r"^orders\z", "orders", True),
    (r"^\Qa.b\E$", "a.b", True),
    (r"^\Qa.b\E$", "axb", False),
    ("[[:alpha:]]", "x", True),
    ("^[a-z&&[^b]]$", "a", False),
    ("(?<n>a)", "a", True),
    (r"a\x00b", "a\0b", True),
    ("", "", True),
]
OPPOSITE = [
    ("^orders$", "orders\n", False),
    ("^.$", "é", True),
    ("^[é]$", "é", True),
    ("[é]", "à", False),
    ("(?i)^É$", "é", True),
]
"""RabbitMQ sees the bytes of UTF-8, and its $ matches before a final newline."""


@pytest.mark.parametrize(("expression", "text", "is_found"), SAME + OPPOSITE)
def test_an_expression_sees_characters_and_the_true_end_of_a_name(expression: str, text: str, is_found: bool) -> None:  # noqa: FBT001
    assert RegularExpression(expression).matches(text) is is_found


@pytest.mark.rabbitmq
def test_rabbitmq_matches_as_we_say(rabbitmq: RabbitMQ) -> None:
    pairs = ",".join(f"{{{binary(expression)},{binary(text)}}}" for expression, text, _ in SAME + OPPOSITE)
    run = f"[re:run(Name, Pattern, [{{capture, none}}]) =:= match || {{Pattern, Name}} <- [{pairs}]]"  # as RabbitMQ does
    found = rabbitmq.evaluate(run).strip("[]").split(",")
    expected = [is_found for *_, is_found in SAME] + [not is_found for *_, is_found in OPPOSITE]
    assert [each.strip() == "true" for each in found] == expected


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("(?=a)", "look-ahead"),
        ("x(?!a)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "a backreference"),
        (r"(?<n>a)\k<n>", "a backreference"),
        ("(?P<n>a)(?P=n)", "a backreference"),
        ("(?>a)", "an atomic group"),
        ("a++", "bad repetition operator"),
        ("(", "missing )"),
        ("a{1001}", "invalid repetition size"),
        ("(?<n", "invalid named capture group"),
        ("x" * 200_000, "too large"),
        (r"(\pL{100}){10}", "too large"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_the_engine_cannot_compile_is_refused_by_name(expression: str, name: str) -> None:
    with pytest.raises(InvalidValueError, match="expected a regular expression") as refused:
        RegularExpression(expression)
    assert name in str(refused.value)


@pytest.mark.parametrize("expression", ["^(a+)+$", "^(a|a)*$", "(.*)*(.*)*(.*)*x$", "^(a|b|ab)*c$"])
def test_no_expression_takes_exponential_time(expression: str) -> None:
    # Python's `re` would need longer than the age of the universe for this.
    assert not RegularExpression(expression).matches("ab" * 100 + "a" * 50_000 + "!")


def test_an_escaped_text_matches_itself_only() -> None:
    for text in (".*", "a+b", "{vhost}", "ü\n"):
        assert RegularExpression(f"^{escape(text)}$").matches(text)
        assert not RegularExpression(f"^{escape(text)}$").matches("x")


def test_a_stored_expression_that_is_not_supported_matches_nothing_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored_expression.cache_clear()
    fits.cache_clear()
    assert not fits("(?=a)", "a")
    assert not fits("(?=a)", "b")
    with caplog.at_level(logging.ERROR):
        policy = Policy("old", r"(a)\1", {"max-length": 1})
        registry = Registry("/", [policy, Policy("new", "a", {"max-length": 2}, priority=-1)])
        registry.set_policies(registry.policies)
    found = registry.queue_policy("aa")
    assert found is not None
    assert found.name == "new"
    (report,) = [text for text in caplog.messages if "policy 'old'" in text]
    assert report.startswith("policy 'old' in vhost '/' matches nothing: expected a regular expression")
    assert "a backreference" in report


def test_a_definitions_file_with_an_expression_that_is_not_supported_is_refused() -> None:
    policy = {"name": "p", "pattern": "^(?!amq)", "definition": {"max-length": 1}}
    with pytest.raises(DefinitionsError, match=r"policies\[0\]\.pattern: expected a regular expression.*look-ahead"):
        Topology.from_definitions({"policies": [policy]})


def test_policies_are_resolved_before_a_topology_travels_to_executors() -> None:
    topology = Topology(
        (Exchange("in", "topic"), Exchange("rest", "fanout"), Exchange("in", "topic", vhost="other")),
        (Queue("q"),),
        (Binding("rest", "q"),),
        (Policy("spare", "^in$|^amq.topic$", {"alternate-exchange": "rest"}),),
    )
    resolved = Registry.of(topology, "/").resolve_policies(topology)
    assert resolved.policies == ()
    for exchange in ("in", "amq.topic", "amq.direct", "rest"):
        assert Router(resolved).route(exchange, "k") == Router(topology).route(exchange, "k")
    assert Router(resolved).route("amq.topic", "k") == ("q",)
    assert [exchange.name for exchange in resolved.exchanges if exchange.vhost == "other"] == ["in"]
