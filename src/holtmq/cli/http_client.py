"""The client of a broker's HTTP API, made with the standard library alone."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, TypeVar, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import click

from holtmq.cli.broker_login import login_of
from holtmq.cli.options import AliasedOption, password_file_option
from holtmq.client.address import without_password
from holtmq.errors import HoltmqError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:15672"
TIMEOUT_S = 60.0
DEFAULT_EXCHANGE_SEGMENT = "amq.default"


class ApiError(HoltmqError):
    """The broker refused a request, or cannot be reached."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The HTTP API of a broker at a URL. The password comes from a file or the environment, unless the URL has one."""

    def __init__(self, url: str, ca: str | None = None, password_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"expected a URL such as http://user:password@host:15672, got {without_password(url)!r}")
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        login = ":".join(login_of(url, password_file))
        self._authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._opener = build_opener(HTTPSHandler(context=ssl.create_default_context(cafile=ca)), _NoRedirects())

    def call(self, method: str, *segments: str, body: object = None, query: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the JSON of the answer, or None if it has no content."""
        _, content = self._send(method, segments, body, query)
        return json.loads(content) if content else None

    def get(self, *segments: str, **query: Any) -> Any:
        """Return the JSON of a resource."""
        return self.call("GET", *segments, query=query)

    def put(self, *segments: str, body: object) -> bool:
        """Create or update a resource; return whether it is new."""
        status, _ = self._send("PUT", segments, body, None)
        return status == HTTPStatus.CREATED

    def _send(self, method: str, segments: tuple[str, ...], body: object, query: Mapping[str, Any] | None) -> tuple[int, bytes]:
        path = "/api/" + "/".join(quote(segment, safe="") for segment in segments)  # a name may contain slashes
        if query:
            path += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        headers = {"authorization": self._authorization, "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return response.status, response.read()
        except HTTPError as error:
            raise ApiError(_reason(error), error.code) from error
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(f"cannot reach the HTTP API at {self._base}: {reason}") from error


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: it would send the password to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


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


def _reason(error: HTTPError) -> str:
    content = error.read()
    try:
        return str(json.loads(content)["reason"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"HTTP {error.code}: {content[:200].decode(errors='replace') or error.reason}"
