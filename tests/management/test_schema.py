"""The HTTP API conforms to its OpenAPI description, for any input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holtmq.management.openapi import describe_api
from tests.management.conftest import Node, running_node
from tests.management.http import Http

# The description has no status 500, so the first check reports it. It has 503 for health checks that fail.
schema = schemathesis.openapi.from_dict(describe_api())
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
FUZZER = ("fuzzer", "fuzz")


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Node]:
    with running_node() as node:
        yield node


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_operation_answers_as_described(case: Any, fuzzed: Node) -> None:
    _login(fuzzed.http)
    case.call_and_validate(base_url=fuzzed.http.base, auth=FUZZER, checks=CHECKS)


def _login(http: Http) -> None:
    """Create the user and its permissions again: an earlier request may have deleted them."""
    if http.as_user(":".join(FUZZER)).call("GET", "/api/whoami").status != 200:
        http.put(f"/api/users/{FUZZER[0]}", {"password": FUZZER[1], "tags": "administrator"})
    http.put(f"/api/permissions/%2F/{FUZZER[0]}", {"configure": ".*", "write": ".*", "read": ".*"})


def test_the_description_is_served_and_complete(fuzzed: Node) -> None:
    described = fuzzed.http.as_user(None).call("GET", "/api/openapi.json").body
    assert described["openapi"] == "3.1.0"
    assert len(described["paths"]) > 60
    names = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    assert "HTTP API" in fuzzed.http.as_user(None).call("GET", "/api/").body
