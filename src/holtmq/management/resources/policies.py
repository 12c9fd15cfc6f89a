"""Policies: settings for all queues and exchanges whose name matches a pattern."""

from __future__ import annotations

from typing import Any

from holtmq.broker.definition_entries import require_policy
from holtmq.errors import DefinitionsError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.listing import Items
from holtmq.management.operations import NO_CONTENT, Call, Outcome, api, created
from holtmq.management.slices import finish
from holtmq.management.views import policy_view
from holtmq.topology import Policy
from holtmq.topology.definitions_file import POLICY_TARGETS

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
def policies(call: Call) -> Items[Policy]:
    """List the policies of all vhosts that the user can access."""
    return _list(call)


@api.collection("/api/policies/{vhost}")
def policies_of_vhost(call: Call) -> Items[Policy]:
    """List the policies of a vhost."""
    return _list(call)


def _list(call: Call) -> Items[Policy]:
    found = [policy for vhost in call.vhosts for policy in vhost.router.registry.policies]
    return Items(found, policy_view, lambda policy: (policy.name,))


@api.get("/api/policies/{vhost}/{name}")
def policy(call: Call) -> dict[str, Any]:
    """Return a policy."""
    return policy_view(_find(call))


@api.add("PUT", "/api/policies/{vhost}/{name}", need=Need.POLICYMAKER, body=POLICY, answers={201: None, 204: None})
async def set_policy(call: Call) -> Outcome:
    """Create or update a policy."""
    vhost, fields, name = call.vhost, call.fields(), call.path["name"]
    if not fields.has("definition"):
        raise DefinitionsError("body.definition", "expected an object with the settings of the policy, got nothing")
    pattern, target, priority = fields.text("pattern"), fields.text("apply-to", "all"), fields.integer("priority", 0)
    policy = Policy(name, pattern, fields.table("definition"), target, priority, vhost.name)
    require_policy(policy, "body")
    is_new = all(each.name != name for each in vhost.router.registry.policies)
    call.node.begin_turn()
    await finish(call.node.broker.set_policy(policy), call.node.begin_turn)
    return created(is_new=is_new)


@api.add("DELETE", "/api/policies/{vhost}/{name}", need=Need.POLICYMAKER)
async def delete_policy(call: Call) -> Outcome:
    """Delete a policy."""
    found = _find(call)
    call.node.begin_turn()
    await finish(call.node.broker.remove_policy(found.vhost, found.name), call.node.begin_turn)
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
