"""Runtime parameters. HoltMQ stores and exports them; it does not use them."""

from __future__ import annotations

from typing import Any

from holtmq.broker.definition_entries import read_parameter
from holtmq.broker.definitions_export import parameter_to_json
from holtmq.errors import NotFoundError
from holtmq.management.access import Need
from holtmq.management.listing import Items
from holtmq.management.operations import NO_CONTENT, Call, Outcome, api, created
from holtmq.topology import Parameter

VALUE = {"type": "object", "required": ["value"]}
NEED = Need.POLICYMAKER


@api.collection("/api/parameters", need=NEED)
def parameters(call: Call) -> Items[Parameter]:
    """List the parameters of all vhosts that the user can access."""
    return _list(call)


@api.collection("/api/parameters/{component}", need=NEED)
def parameters_of_component(call: Call) -> Items[Parameter]:
    """List the parameters of a component."""
    return _list(call)


@api.collection("/api/parameters/{component}/{vhost}", need=NEED)
def parameters_in_vhost(call: Call) -> Items[Parameter]:
    """List the parameters of a component in a vhost."""
    return _list(call)


def _list(call: Call) -> Items[Parameter]:
    vhosts, component = {vhost.name for vhost in call.vhosts}, call.path.get("component")
    every = call.node.broker.parameters.values()
    return _items([each for each in every if each.vhost in vhosts and component in (None, each.component)])


def _items(found: list[Parameter]) -> Items[Parameter]:
    return Items(found, parameter_to_json, lambda parameter: (parameter.name,))


@api.get("/api/parameters/{component}/{vhost}/{name}", need=NEED)
def parameter(call: Call) -> dict[str, Any]:
    """Return a parameter."""
    return parameter_to_json(_find(call, call.path["component"], call.vhost.name))


@api.add("PUT", "/api/parameters/{component}/{vhost}/{name}", need=NEED, body=VALUE, answers={201: None, 204: None})
def set_parameter(call: Call) -> Outcome:
    """Set a parameter."""
    return _set(call, call.path["component"], call.vhost.name)


@api.add("DELETE", "/api/parameters/{component}/{vhost}/{name}", need=NEED)
def delete_parameter(call: Call) -> Outcome:
    """Delete a parameter."""
    found = _find(call, call.path["component"], call.vhost.name)
    call.node.begin_turn()
    call.node.broker.remove_parameter(found)
    return NO_CONTENT


@api.collection("/api/global-parameters", need=NEED)
def global_parameters(call: Call) -> Items[Parameter]:
    """List the global parameters."""
    return _items([each for each in call.node.broker.parameters.values() if each.is_global])


@api.get("/api/global-parameters/{name}", need=NEED)
def global_parameter(call: Call) -> dict[str, Any]:
    """Return a global parameter."""
    return parameter_to_json(_find(call, "", ""))


@api.add("PUT", "/api/global-parameters/{name}", need=Need.ADMINISTRATOR, body=VALUE, answers={201: None, 204: None})
def set_global_parameter(call: Call) -> Outcome:
    """Set a global parameter."""
    return _set(call, "", "")


@api.add("DELETE", "/api/global-parameters/{name}", need=Need.ADMINISTRATOR)
def delete_global_parameter(call: Call) -> Outcome:
    """Delete a global parameter."""
    found = _find(call, "", "")
    call.node.begin_turn()
    call.node.broker.remove_parameter(found)
    return NO_CONTENT


def _set(call: Call, component: str, vhost: str) -> Outcome:
    found = read_parameter(call.fields(), component, call.path["name"], vhost)
    is_new = found.identity not in call.node.broker.parameters
    call.node.begin_turn()
    call.node.broker.set_parameter(found)
    return created(is_new=is_new)


def _find(call: Call, component: str, vhost: str) -> Parameter:
    found = call.node.broker.parameters.get((component, vhost, call.path["name"]))
    if found is None:
        raise NotFoundError(f"no parameter {call.path['name']!r}")
    return found
