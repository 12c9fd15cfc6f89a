"""The OpenAPI description of the HTTP API, generated from its operations."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from holtmq.management import resources
from holtmq.management.access import Need
from holtmq.management.operations import Operation, api

assert resources.__all__  # importing the resources registers their operations in `api`
ERROR = {
    "type": "object",
    "required": ["error", "reason"],
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
}
REFUSALS = {
    400: "The request is invalid; the reason names the field and the expected value.",
    401: "Authentication failed, or the user lacks a tag or permission.",
    403: "A browser sent the request on behalf of another site.",
    404: "The object named in the path does not exist.",
}
REFUSALS_OF_CHANGES = {413: "The body is too large.", 503: "The change could not be written to disk."}
SUCCESSES = {200: "Success.", 201: "Created.", 204: "Success, without content.", 503: "The check failed; the reason says why."}
QUERY = {
    "page": "Page to return, counted from 1. Without it, the whole list is returned.",
    "page_size": "Number of items on a page (default: 100, maximum: 500).",
    "name": "Return only items whose name contains this text.",
    "use_regex": "If true, `name` is a regular expression.",
    "sort": "Field to sort by. A dot selects a field of a nested object.",
    "sort_reverse": "If true, sort in descending order.",
    "columns": "Fields to return, separated by commas (default: all).",
    "lengths_age": "Period covered by the chart of queue lengths, in seconds.",
    "lengths_incr": "Interval between samples of queue lengths, in seconds.",
    "msg_rates_age": "Period covered by the chart of message rates, in seconds.",
    "msg_rates_incr": "Interval between samples of message rates, in seconds.",
    "data_rates_age": "Period covered by the chart of data rates, in seconds.",
    "data_rates_incr": "Interval between samples of data rates, in seconds.",
    "disable_stats": "If true, leave out message counts and rates.",
    "enable_queue_totals": "If true, include message counts even with `disable_stats`.",
    "if-unused": "If true, delete only if it has no consumers or bindings.",
    "if-empty": "If true, delete only if it has no messages.",
    "default_exchange": "If false, leave out the implicit bindings of the default exchange.",
}


@cache
def describe_api() -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in api.every:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HoltMQ",
            "version": version("holtmq"),
            "description": "HTTP API of HoltMQ. Paths and JSON are compatible with RabbitMQ's management API. "
            "Names in a path must be percent-encoded: the vhost / is written as %2F.",
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {"Error": ERROR},
        },
    }


def _describe(operation: Operation) -> dict[str, Any]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in operation.parameters
    ]
    asked = [
        {"name": name, "in": "query", "description": QUERY[name], "schema": {"type": "string"}} for name in operation.query
    ]
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "tags": [operation.segments[1]],
        "parameters": [*named, *asked],
        "responses": _answers(operation),
    }
    if operation.need is Need.NOTHING:
        described["security"] = []
    elif operation.need is not Need.ANY:
        described["description"] = f"Requires one of the tags {', '.join(operation.need.value)}."
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
    return described


def _answers(operation: Operation) -> dict[str, Any]:
    refusals = {**REFUSALS, **(REFUSALS_OF_CHANGES if operation.changes else {})}
    if operation.need is Need.NOTHING:
        refusals = {400: REFUSALS[400], 403: REFUSALS[403]}
    described: dict[str, Any] = {
        str(status): {
            "description": reason,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, reason in refusals.items()
    }
    for status, schema in operation.answers.items():
        described[str(status)] = {"description": SUCCESSES[status]}
        if schema is not None:
            described[str(status)]["content"] = {"application/json": {"schema": schema}}
    return dict(sorted(described.items()))
