"""The behaviour of a broker beyond routing, as rules that run over AMQP on HoltMQ and on RabbitMQ."""

from tests.conformance.behaviour import (
    consuming,
    dead_letters,
    declaring,
    errors,
    expiry,
    hashing,
    limits,
    publishing,
    settling,
    streams,
    transactions,
)
from tests.conformance.behaviour.rule import RULES, Rule, Scene

__all__ = [
    "RULES",
    "Rule",
    "Scene",
    "consuming",
    "dead_letters",
    "declaring",
    "errors",
    "expiry",
    "hashing",
    "limits",
    "publishing",
    "settling",
    "streams",
    "transactions",
]
