"""What brokers do beyond routing, rule by rule: each rule is carried out over the wire, on HoltMQ and on RabbitMQ."""

from tests.conformance.behaviour import (
    consuming,
    dead_letters,
    declaring,
    errors,
    expiry,
    limits,
    publishing,
    settling,
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
    "limits",
    "publishing",
    "settling",
    "transactions",
]
