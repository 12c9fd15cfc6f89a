"""holtmq users, permissions, policies: the access to a broker, and the rules for its queues and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from holtmq.cli.http_client import Api, api_options
from holtmq.cli.list_commands import COLUMNS, show_rows, value_of
from holtmq.cli.options import find_password, json_option, parse_table, vhost_option
from holtmq.cli.output import print_json, show

TAGS_HELP = "Tags, separated by commas: administrator, monitoring, policymaker, management."
NEW_PASSWORD_VARIABLE = "HOLTMQ_NEW_PASSWORD"


def new_password_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option of a command that sets a password; the command gets it as `password`. Without it, ask."""

    @wraps(command)
    def with_password(*args: Any, new_password_file: str | None, password: str | None, **options: Any) -> None:
        if password is not None:
            click.echo("--password is deprecated, because others can see it: use --new-password-file", err=True)
        else:
            password = find_password(new_password_file, NEW_PASSWORD_VARIABLE)
        if password is None:
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        command(*args, password=password, **options)

    file_option = click.option(
        "--new-password-file",
        metavar="PATH",
        help=f"File with the new password; - reads it from stdin (default: ask for it) [env: {NEW_PASSWORD_VARIABLE}]",
    )
    return file_option(click.option("--password", hidden=True)(with_password))


def _list(api: Api, things: str, *, as_json: bool) -> None:
    items: list[dict[str, Any]] = api.get(things)
    if as_json:
        print_json(items)
        return
    columns = COLUMNS[things]
    show_rows(list(columns), [[value_of(item, column) for column in columns] for item in items], f"No {things}.")


@click.group()
def users() -> None:
    """Manage the users of a broker."""


@users.command("list")
@api_options
@json_option
def list_users(api: Api, *, as_json: bool) -> None:
    """List the users."""
    _list(api, "users", as_json=as_json)


@users.command("add")
@click.argument("name")
@new_password_option
@click.option("--tags", default="", help=TAGS_HELP)
@api_options
def add_user(api: Api, name: str, password: str, tags: str) -> None:
    """Add the user NAME. Grant permissions with `holtmq permissions set`."""
    api.call("PUT", "users", name, body={"password": password, "tags": tags})
    show(f"User {name} added.")


@users.command("change-password")
@click.argument("name")
@new_password_option
@api_options
def change_password(api: Api, name: str, password: str) -> None:
    """Change the password of the user NAME."""
    api.call("PUT", "users", name, body={"password": password, "tags": api.get("users", name)["tags"]})
    show(f"Password of user {name} changed.")


@users.command("set-tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@api_options
def set_tags(api: Api, name: str, tags: tuple[str, ...]) -> None:
    """Replace the tags of the user NAME with TAGS."""
    user = api.get("users", name)
    kept = {"password_hash": user["password_hash"], "hashing_algorithm": user["hashing_algorithm"], "tags": list(tags)}
    api.call("PUT", "users", name, body=kept)
    show(f"Tags of user {name} set to {', '.join(tags)}." if tags else f"Tags of user {name} removed.")


@users.command("delete")
@click.argument("name")
@api_options
def delete_user(api: Api, name: str) -> None:
    """Delete the user NAME."""
    api.call("DELETE", "users", name)
    show(f"User {name} deleted.")


@click.group()
def permissions() -> None:
    """Manage the permissions of users in the vhosts of a broker."""


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
    """Set the permissions of USER in a vhost.

    CONFIGURE, WRITE and READ are regular expressions for the names of exchanges and queues; the default of each is ".*".
    """
    api.call("PUT", "permissions", vhost, user, body={"configure": configure, "write": write, "read": read})
    show(f"Permissions of user {user} in vhost {vhost} set.")


@permissions.command("clear")
@click.argument("user")
@vhost_option
@api_options
def clear_permissions(api: Api, user: str, vhost: str) -> None:
    """Remove all permissions of USER in a vhost."""
    api.call("DELETE", "permissions", vhost, user)
    show(f"Permissions of user {user} in vhost {vhost} cleared.")


@click.group()
def policies() -> None:
    """Manage policies, which set arguments of queues and exchanges by their names."""


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
@click.option("--priority", default=0, show_default=True, help="The matching policy with the highest priority applies.")
@click.option(
    "--apply-to",
    type=click.Choice(["all", "queues", "exchanges"]),
    default="all",
    show_default=True,
    help="Objects that the policy applies to.",
)
@vhost_option
@api_options
def set_policy(
    api: Api, name: str, pattern: str, definition: tuple[str, ...], priority: int, apply_to: str, vhost: str
) -> None:
    """Set the policy NAME for queues and exchanges whose name matches the regular expression PATTERN.

    DEFINITION is one or more NAME=VALUE, such as max-length=1000.
    """
    body = {"pattern": pattern, "definition": parse_table(definition), "priority": priority, "apply-to": apply_to}
    api.call("PUT", "policies", vhost, name, body=body)
    show(f"Policy {name} set.")


@policies.command("clear")
@click.argument("name")
@vhost_option
@api_options
def clear_policy(api: Api, name: str, vhost: str) -> None:
    """Delete the policy NAME."""
    api.call("DELETE", "policies", vhost, name)
    show(f"Policy {name} cleared.")
