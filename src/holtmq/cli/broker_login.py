"""The user and password that a command logs in with.

Other users of the machine can see the arguments of all processes. A password therefore comes from a file, an environment
variable or the terminal. A password in a URL still works: the URL itself can come from an environment variable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from holtmq.cli.options import PASSWORD_VARIABLE, AliasedOption, find_password
from holtmq.client.address import Address

if TYPE_CHECKING:
    from holtmq.spark.amqp.amqp_options import BrokerOptions

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


@dataclass(frozen=True, slots=True)
class Login:
    """How a job logs in to a broker: the options that its command was given."""

    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    ca_file: str | None = None

    def broker(self, url: str) -> BrokerOptions:
        """Return the broker at a URL, with the password unless each process that connects looks it up itself."""
        from holtmq.spark.amqp.amqp_options import BrokerOptions

        Address.parse(url)
        password = None if self.password_env or self.password_file else login_of(url, None, self.user)[1]
        return BrokerOptions(
            url=url, user=self.user, password=password, password_env=self.password_env, password_file=self.password_file,
            ca_file=self.ca_file,
        )  # fmt: skip

    def for_source(self, source: str, url: str, password_file: str | None) -> Login:
        """Return the login for the source of a job whose own broker is at `url`: a password is sent to its own broker only."""
        if password_file is not None:
            return Login(password_file=password_file, ca_file=self.ca_file)
        ours, other = Address.parse(url), Address.parse(source)
        user = self.user or ours.user
        has_same_user = urlsplit(source).username is None or other.user == user
        is_ours = (ours.host, ours.port) == (other.host, other.port) and has_same_user
        is_given = self.user or self.password_env or self.password_file
        return replace(self, user=user) if is_ours and is_given else Login(ca_file=self.ca_file)


def login_options(command: F) -> F:
    """Add the options of `Login`."""
    for option in (
        click.option("--ca-file", help="File with the certificates to trust, for amqps."),
        click.option("--password-file", metavar="PATH", help="File with the password, on each machine that connects."),
        click.option(
            "--password-env",
            metavar="NAME",
            help="Environment variable with the password, in each process that connects (default: HOLTMQ_PASSWORD here).",
        ),
        click.option("--user", help="User name (default: that of the URL, or guest)."),
    ):
        command = option(command)
    return command


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
