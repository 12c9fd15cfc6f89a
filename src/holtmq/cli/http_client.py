"""The way from the command line to a broker: its HTTP API, by the standard library alone."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from functools import wraps
from http.client import HTTPException
from typing import Any, TypeVar, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

import click

from holtmq.cli.explain_command import parse_header
from holtmq.errors import HoltmqError
from holtmq.topology import DEFAULT_VHOST

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://guest:guest@127.0.0.1:15672"
TIMEOUT_S = 60.0
DEFAULT_IN_PATHS = "amq.default"


class ApiError(HoltmqError):
    """The broker refused, or is not there."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api:
    def __init__(self, url: str, ca: str | None = None) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"expected a URL as in http://user:password@host:15672, got {_without_password(url)!r}")
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._opener = build_opener(HTTPSHandler(context=ssl.create_default_context(cafile=ca)))

    def call(self, method: str, *segments: str, body: object = None, query: Mapping[str, Any] | None = None) -> Any:
        """Ask for something; the segments of the path may hold anything, slashes included."""
        path = "/api/" + "/".join(quote(segment, safe="") for segment in segments)
        if query:
            path += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        headers = {"authorization": self._authorization, "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                content = response.read()
        except HTTPError as error:
            raise ApiError(_reason(error), error.code) from error
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(f"no HTTP API at {self._base}: {reason}") from error
        return json.loads(content) if content else None

    def get(self, *segments: str, **query: Any) -> Any:
        return self.call("GET", *segments, query=query)


def exchange_segment(name: str) -> str:
    return name or DEFAULT_IN_PATHS


def api_options(command: F) -> F:
    """Options of every command that talks to a broker; the command gets `api`."""

    @wraps(command)
    def with_api(*args: Any, url: str, ca: str | None, **options: Any) -> Any:
        return command(*args, api=Api(url, ca), **options)

    url_option = click.option(
        "--url",
        envvar="HOLTMQ_URL",
        default=DEFAULT_URL,
        metavar="URL",
        help=f"The broker's HTTP API, with user and password; also from HOLTMQ_URL.  [default: {DEFAULT_URL}]",
    )
    ca_option = click.option(
        "--ca",
        envvar="HOLTMQ_CA",
        metavar="FILE",
        help="A PEM file with the authority to trust, for https; also from HOLTMQ_CA.",
    )
    return cast("F", url_option(ca_option(with_api)))


vhost_option = click.option("--vhost", "-V", default=DEFAULT_VHOST, show_default=True, help="The vhost.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
argument_option = click.option(
    "--argument",
    "-a",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument; VALUE is JSON or text. May be repeated.",
)


def table(pairs: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE pairs, values read as JSON where they are JSON."""
    return dict(map(parse_header, pairs))


def _reason(error: HTTPError) -> str:
    content = error.read()
    try:
        return str(json.loads(content)["reason"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"HTTP {error.code}: {content[:200].decode(errors='replace') or error.reason}"


def _without_password(url: str) -> str:
    return url if "@" not in url else f"…@{url.rpartition('@')[2]}"
