"""Policies: settings for all queues and exchanges whose name matches a pattern."""

from __future__ import annotations

from typing import Any

from holtmq.errors import DefinitionsError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.operations import NO_CONTENT, Call, Outcome, api, created
from holtmq.management.views import policy_view
from holtmq.queueing.rules import OVERFLOWS, POLICY_NUMBERS
from holtmq.table import Table, describe, require_short_string
from holtmq.topology import Policy
from holtmq.topology.definitions_file import POLICY_TARGETS, require_expression

TEXTS = ("dead-letter-exchange", "dead-letter-routing-key", "overflow", "alternate-exchange")
CLUSTER_SETTINGS = (
    "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
    "queue-mode", "queue-version", "queue-master-locator", "queue-leader-locator", "consumer-timeout",
    "federation-upstream", "federation-upstream-set",
)  # fmt: skip
"""Settings for clusters. They are accepted and stored, without effect."""
POLICY = {
    "type": "object",
    "required": ["pattern", "definition"],
    "properties": {
        "pattern": {"type": "string"},
        "definition": {"type": "object"},
        "priority": {"type": "integer"},
        "apply-to": {"enum": list(POLICY_TARGETS)},
    },
}


@api.collection("/api/policies")
def policies(call: Call) -> list[dict[str, Any]]:
    """List the policies of all vhosts that the user can access."""
    return _list(call)


@api.collection("/api/policies/{vhost}")
def policies_of_vhost(call: Call) -> list[dict[str, Any]]:
    """List the policies of a vhost."""
    return _list(call)


def _list(call: Call) -> list[dict[str, Any]]:
    return [policy_view(policy) for vhost in call.vhosts for policy in vhost.router.registry.policies]


@api.get("/api/policies/{vhost}/{name}")
def policy(call: Call) -> dict[str, Any]:
    """Return a policy."""
    return policy_view(_find(call))


@api.add("PUT", "/api/policies/{vhost}/{name}", need=Need.POLICYMAKER, body=POLICY, answers={201: None, 204: None})
def set_policy(call: Call) -> Outcome:
    """Create or update a policy."""
    vhost, fields, name = call.vhost, call.fields(), call.path["name"]
    require_short_string(name, "a policy's name")
    pattern = require_expression(fields.text("pattern"), "body.pattern")
    target, priority = fields.text("apply-to", "all"), fields.integer("priority", 0)
    if "definition" not in call.mapping():
        raise DefinitionsError("body.definition", "expected an object with the settings of the policy, got nothing")
    definition = fields.table("definition")
    if target not in POLICY_TARGETS:
        raise DefinitionsError("body.apply-to", f"expected one of {', '.join(POLICY_TARGETS)}, got {target!r}")
    if abs(priority) >= 2**31:
        raise DefinitionsError("body.priority", f"expected an integer of 32 bits, got {priority}")
    _require_definition(definition)
    is_new = all(each.name != name for each in vhost.router.registry.policies)
    call.node.begin_turn()
    call.node.broker.set_policy(Policy(name, pattern, definition, target, priority, vhost.name))
    return created(is_new=is_new)


@api.add("DELETE", "/api/policies/{vhost}/{name}", need=Need.POLICYMAKER)
def delete_policy(call: Call) -> Outcome:
    """Delete a policy."""
    found = _find(call)
    call.node.begin_turn()
    call.node.broker.remove_policy(found.vhost, found.name)
    return NO_CONTENT


@api.collection("/api/operator-policies")
def operator_policies(_: Call) -> list[dict[str, Any]]:
    """List operator policies. Always empty: HoltMQ does not have them."""
    return []


def _find(call: Call) -> Policy:
    vhost, name = call.vhost, call.path["name"]
    for found in vhost.router.registry.policies:
        if found.name == name:
            return found
    raise NotFoundError(f"no policy {name!r} in vhost {vhost.name!r}")


def _require_definition(definition: Table) -> None:
    if not definition:
        raise DefinitionsError("body.definition", "expected at least one setting, got none")
    for name, value in definition.items():
        path = f"body.definition.{name}"
        if name in POLICY_NUMBERS:
            least, most = POLICY_NUMBERS[name]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise DefinitionsError(path, f"expected a number from {least} to {most}, got {describe(value)}")
        elif name in TEXTS:
            if not isinstance(value, str):
                raise DefinitionsError(path, f"expected a string, got {describe(value)}")
            if name == "overflow" and value not in OVERFLOWS:
                raise DefinitionsError(path, f"expected one of {', '.join(OVERFLOWS)}, got {value!r}")
        elif name not in CLUSTER_SETTINGS:
            raise DefinitionsError(path, f"expected one of {', '.join((*POLICY_NUMBERS, *TEXTS))}, got {name!r}")
