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
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

import click

from holtmq.cli.options import AliasedOption
from holtmq.errors import HoltmqError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://guest:guest@127.0.0.1:15672"
TIMEOUT_S = 60.0
DEFAULT_EXCHANGE_SEGMENT = "amq.default"


class ApiError(HoltmqError):
    """The broker refused a request, or cannot be reached."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The HTTP API of a broker at a URL that includes user and password."""

    def __init__(self, url: str, ca: str | None = None) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"expected a URL such as http://user:password@host:15672, got {_without_password(url)!r}")
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._opener = build_opener(HTTPSHandler(context=ssl.create_default_context(cafile=ca)))

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


def exchange_segment(name: str) -> str:
    """Return the segment of a path that stands for an exchange; the default exchange has no name."""
    return name or DEFAULT_EXCHANGE_SEGMENT


def api_options(command: F) -> F:
    """Add the options of a command that uses the HTTP API; the command gets it as `api`."""

    @wraps(command)
    def with_api(*args: Any, http_url: str, ca: str | None, **options: Any) -> Any:
        return command(*args, api=Api(http_url, ca), **options)

    url_option = click.option(
        "--http-url",
        "--url",
        "http_url",
        cls=AliasedOption,
        envvar=["HOLTMQ_HTTP_URL", "HOLTMQ_URL"],
        default=DEFAULT_URL,
        metavar="URL",
        help=f"URL of the HTTP API, with user and password [env: HOLTMQ_HTTP_URL; default: {DEFAULT_URL}]",
    )
    ca_option = click.option(
        "--ca",
        envvar="HOLTMQ_CA",
        metavar="FILE",
        help="PEM file with the certificate authority to trust for https [env: HOLTMQ_CA]",
    )
    return cast("F", url_option(ca_option(with_api)))


def _reason(error: HTTPError) -> str:
    content = error.read()
    try:
        return str(json.loads(content)["reason"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"HTTP {error.code}: {content[:200].decode(errors='replace') or error.reason}"


def _without_password(url: str) -> str:
    return url if "@" not in url else f"…@{url.rpartition('@')[2]}"
