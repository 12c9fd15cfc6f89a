"""The HTTP API of the broker that a command selects by options and environment variables."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import click

from holtmq.cli.broker_login import login_of
from holtmq.cli.options import AliasedOption, password_file_option
from holtmq.client.address import without_password
from holtmq.client.http_api import HttpApi

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:15672"
DEFAULT_EXCHANGE_SEGMENT = "amq.default"


class Api(HttpApi):
    """The HTTP API of a broker at a URL. The password comes from a file or the environment, unless the URL has one."""

    def __init__(self, url: str, ca: str | None = None, password_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"expected a URL such as http://user:password@host:15672, got {without_password(url)!r}")
        base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        super().__init__(base, *login_of(url, password_file), ssl.create_default_context(cafile=ca))


def exchange_segment(name: str) -> str:
    """Return the segment of a path that stands for an exchange; the default exchange has no name."""
    return name or DEFAULT_EXCHANGE_SEGMENT


def api_options(command: F) -> F:
    """Add the options of a command that uses the HTTP API; the command gets it as `api`."""

    @wraps(command)
    def with_api(*args: Any, http_url: str | None, ca: str | None, password_file: str | None, **options: Any) -> Any:
        return command(*args, api=Api(http_url or DEFAULT_URL, ca, password_file), **options)

    return cast("F", http_url_option(ca_option(password_file_option(with_api))))


http_url_option = click.option(
    "--http-url",
    "--url",
    "http_url",
    cls=AliasedOption,
    envvar=["HOLTMQ_HTTP_URL", "HOLTMQ_URL"],
    metavar="URL",
    help=f"URL of the HTTP API, with the user [env: HOLTMQ_HTTP_URL; default: {DEFAULT_URL}, user guest]",
)
ca_option = click.option(
    "--ca",
    envvar="HOLTMQ_CA",
    metavar="FILE",
    help="PEM file with the certificate authority to trust for https [env: HOLTMQ_CA]",
)
