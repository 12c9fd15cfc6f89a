"""holtmq users, permissions, policies: who may do what, and what names imply."""

from __future__ import annotations

from typing import Any

import click

from holtmq.cli.http_client import Api, api_options, json_option, table, vhost_option
from holtmq.cli.list_commands import COLUMNS, show_rows, value_of
from holtmq.cli.output import print_json, show

TAGS_HELP = "administrator, monitoring, policymaker or management; several with commas."


def _list(api: Api, things: str, *, as_json: bool) -> None:
    items: list[dict[str, Any]] = api.get(things)
    if as_json:
        print_json(items)
        return
    columns = COLUMNS[things]
    show_rows(list(columns), [[value_of(item, column) for column in columns] for item in items], f"No {things}.")


@click.group()
def users() -> None:
    """The users of a broker."""


@users.command("list")
@api_options
@json_option
def list_users(api: Api, *, as_json: bool) -> None:
    """List the users."""
    _list(api, "users", as_json=as_json)


@users.command("add")
@click.argument("name")
@click.option("--password", prompt=True, hide_input=True, confirmation_prompt=True, help="Asked for where it is not given.")
@click.option("--tags", default="", help=TAGS_HELP)
@api_options
def add_user(api: Api, name: str, password: str, tags: str) -> None:
    """Add the user NAME. What it may do is said with `holtmq permissions set`."""
    api.call("PUT", "users", name, body={"password": password, "tags": tags})
    show(f"user {name} added")


@users.command("change-password")
@click.argument("name")
@click.option("--password", prompt=True, hide_input=True, confirmation_prompt=True, help="Asked for where it is not given.")
@api_options
def change_password(api: Api, name: str, password: str) -> None:
    """Give the user NAME another password."""
    api.call("PUT", "users", name, body={"password": password, "tags": api.get("users", name)["tags"]})
    show(f"password of {name} changed")


@users.command("set-tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@api_options
def set_tags(api: Api, name: str, tags: tuple[str, ...]) -> None:
    """Give the user NAME these TAGS and no others."""
    user = api.get("users", name)
    kept = {"password_hash": user["password_hash"], "hashing_algorithm": user["hashing_algorithm"], "tags": list(tags)}
    api.call("PUT", "users", name, body=kept)
    show(f"user {name} has the tags {', '.join(tags) or 'none'}")


@users.command("delete")
@click.argument("name")
@api_options
def delete_user(api: Api, name: str) -> None:
    """Delete the user NAME."""
    api.call("DELETE", "users", name)
    show(f"user {name} deleted")


@click.group()
def permissions() -> None:
    """What users may do in the vhosts of a broker."""


@permissions.command("list")
@api_options
@json_option
def list_permissions(api: Api, *, as_json: bool) -> None:
    """List all permissions."""
    _list(api, "permissions", as_json=as_json)


@permissions.command("set")
@click.argument("user")
@click.argument("configure", default=".*")
@click.argument("write", default=".*")
@click.argument("read", default=".*")
@vhost_option
@api_options
def set_permissions(api: Api, user: str, configure: str, write: str, read: str, vhost: str) -> None:
    """Say what USER may do in a vhost: regular expressions for names, each .* unless given."""
    api.call("PUT", "permissions", vhost, user, body={"configure": configure, "write": write, "read": read})
    show(f"permissions of {user} in {vhost} set")


@permissions.command("clear")
@click.argument("user")
@vhost_option
@api_options
def clear_permissions(api: Api, user: str, vhost: str) -> None:
    """Take all rights of USER in a vhost away."""
    api.call("DELETE", "permissions", vhost, user)
    show(f"permissions of {user} in {vhost} cleared")


@click.group()
def policies() -> None:
    """Arguments that queues and exchanges of a broker get by their names."""


@policies.command("list")
@api_options
@json_option
def list_policies(api: Api, *, as_json: bool) -> None:
    """List all policies."""
    _list(api, "policies", as_json=as_json)


@policies.command("set")
@click.argument("name")
@click.argument("pattern")
@click.argument("definition", nargs=-1, required=True)
@click.option("--priority", default=0, show_default=True, help="Of those that fit, the highest one applies.")
@click.option("--apply-to", type=click.Choice(["all", "queues", "exchanges"]), default="all", show_default=True)
@vhost_option
@api_options
def set_policy(
    api: Api, name: str, pattern: str, definition: tuple[str, ...], priority: int, apply_to: str, vhost: str
) -> None:
    """Set the policy NAME for names that fit PATTERN; DEFINITION is NAME=VALUE, as in max-length=1000."""
    body = {"pattern": pattern, "definition": table(definition), "priority": priority, "apply-to": apply_to}
    api.call("PUT", "policies", vhost, name, body=body)
    show(f"policy {name} set")


@policies.command("clear")
@click.argument("name")
@vhost_option
@api_options
def clear_policy(api: Api, name: str, vhost: str) -> None:
    """Delete the policy NAME."""
    api.call("DELETE", "policies", vhost, name)
    show(f"policy {name} cleared")
