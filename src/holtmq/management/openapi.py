"""The description of the API, made from its operations."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from holtmq.management import resources
from holtmq.management.access import Need
from holtmq.management.operations import Operation, api

assert resources.__all__  # importing them is what fills `api`
ERROR = {
    "type": "object",
    "required": ["error", "reason"],
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
}
REFUSALS = {
    400: "something in the request is not as it should be",
    401: "no user, a wrong password, or no right to this",
    403: "a request of another site",
    404: "what the path names does not exist",
}
REFUSALS_OF_CHANGES = {413: "the body is too large", 503: "the disk did not take it"}


@cache
def describe_api() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in api.every:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HoltMQ",
            "version": version("holtmq"),
            "description": "The HTTP API of HoltMQ, with the paths and JSON of RabbitMQ's management API. "
            "Names in a path are percent-encoded: the vhost / is %2F.",
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
    asked = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in operation.query]
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
        described["description"] = f"For users with the tag {' or '.join(operation.need.value)}."
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
    words = {200: "as asked", 201: "made", 204: "done", 503: "not well"}
    for status, schema in operation.answers.items():
        described[str(status)] = {"description": words[status]}
        if schema is not None:
            described[str(status)]["content"] = {"application/json": {"schema": schema}}
    return dict(sorted(described.items()))
