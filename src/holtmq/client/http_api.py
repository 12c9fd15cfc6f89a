"""A broker's HTTP API, called with the standard library alone."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from holtmq.errors import HoltmqError

TIMEOUT_S = 60.0
INSTANCE_HEADER = "holtmq-instance"
"""A header of responses without a login. It identifies the process of the broker."""


class ApiError(HoltmqError):
    """The broker refused a request, or cannot be reached."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HttpApi:
    """The HTTP API at a URL without user, such as `http://127.0.0.1:15672`."""

    def __init__(
        self,
        base: str,
        user: str,
        password: str,
        tls: ssl.SSLContext | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        uses_proxy: bool = True,
    ) -> None:
        self._base = base
        self._timeout_s = timeout_s
        self._authorization = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        https = HTTPSHandler(context=tls or ssl.create_default_context())
        self._opener = build_opener(https, _NoRedirects(), *(() if uses_proxy else (ProxyHandler({}),)))

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

    def instance(self) -> str | None:
        """Return what identifies the process of a HoltMQ broker, or None if another server answers. No password is sent."""
        try:
            with self._opener.open(f"{self._base}/api/whoami", timeout=self._timeout_s):
                return None
        except HTTPError as error:
            error.close()
            return error.headers.get(INSTANCE_HEADER)
        except (URLError, HTTPException, OSError) as error:
            raise self._unreachable(error) from error

    def _send(self, method: str, segments: tuple[str, ...], body: object, query: Mapping[str, Any] | None) -> tuple[int, bytes]:
        path = "/api/" + "/".join(quote(segment, safe="") for segment in segments)  # a name may contain slashes
        if query:
            path += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        headers = {"authorization": self._authorization, "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return response.status, response.read()
        except HTTPError as error:
            raise ApiError(_reason(error), error.code) from error
        except (URLError, HTTPException, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ApiError:
        return ApiError(f"cannot reach the HTTP API at {self._base}: {getattr(error, 'reason', error)}")


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: it would send the password to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _reason(error: HTTPError) -> str:
    content = error.read()
    try:
        return str(json.loads(content)["reason"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"HTTP {error.code}: {content[:200].decode(errors='replace') or error.reason}"
