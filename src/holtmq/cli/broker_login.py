"""The user and password that a command logs in with.

Other users of the machine can see the arguments of all processes. A password therefore comes from a file, an environment
variable or the terminal. A password in a URL still works: the URL itself can come from an environment variable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from holtmq.cli.options import PASSWORD_VARIABLE, AliasedOption, find_password

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_USER = DEFAULT_PASSWORD = "guest"


def amqp_url_option(default: str | None = None) -> Callable[[F], F]:
    """Return the option for the AMQP URL of a broker."""
    return click.option(
        "--amqp-url",
        "--url",
        "--uri",
        "amqp_url",
        cls=AliasedOption,
        envvar="HOLTMQ_AMQP_URL",
        metavar="URL",
        **({"required": True} if default is None else {"default": default}),
        help="AMQP URL of the broker, for example amqp://guest@127.0.0.1:5672/%2F [env: HOLTMQ_AMQP_URL]",
    )


def login_of(url: str, password_file: str | None, user: str | None = None) -> tuple[str, str]:
    """Return the user and the password for a URL. Ask for the password in a terminal if it is given nowhere."""
    parts = urlsplit(url)
    user = user or unquote(parts.username or DEFAULT_USER)
    if password_file is not None or parts.password is None:
        password = find_password(password_file, PASSWORD_VARIABLE)
    else:
        password = unquote(parts.password)
    if password is None and user == DEFAULT_USER:
        password = DEFAULT_PASSWORD
    if password is None and sys.stdin.isatty():
        password = click.prompt(f"Password of user {user}", hide_input=True, err=True)
    if password is None:
        raise click.UsageError(f"no password for user {user!r}: use --password-file, or set {PASSWORD_VARIABLE}")
    return user, password
