"""The ASGI application: it authenticates a request, runs its operation, and turns errors into HTTP responses."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import parse_qsl, unquote

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holtmq.accounts import User
from holtmq.broker.authorization import Authorization
from holtmq.errors import (
    AccessRefusedError,
    HoltmqError,
    LoginRefusedError,
    NotAllowedError,
    NotFoundError,
    StoreError,
)
from holtmq.management import resources
from holtmq.management.access import Caller, Need, UnauthenticatedError, UnauthorisedError, authenticate
from holtmq.management.bodies import BusyError, Held, TooLargeError
from holtmq.management.listing import Items, PageOutOfRangeError
from holtmq.management.metrics import metrics_page
from holtmq.management.node import Node
from holtmq.management.openapi import describe_api
from holtmq.management.operations import Call, Operation, answer, api
from holtmq.management.pipeline_runs import Runs
from holtmq.management.static import StaticFiles
from holtmq.management.statistics import Statistics

log = logging.getLogger(__name__)

DISK_TIMEOUT_S = 30.0
REALM = 'Basic realm="HoltMQ Management"'
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",
}
PRIVATE_PATHS = ("/api/", "/reports/", "/metrics")
"""Paths whose responses are not for caches: definitions contain password hashes, messages are as private as in the queue."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")
"""What a browser says of requests from our pages, or from its address bar."""
LOCAL_NAMES = ("localhost", "ip6-localhost")


class ForeignRequestError(HoltmqError):
    """A browser sent the request on behalf of another site."""


class AmbiguousLengthError(HoltmqError):
    """The head of the request gives the length of its body in two ways."""


class App:
    """The HTTP API, the metrics and the pages behind one ASGI interface."""

    def __init__(self, node: Node, statistics: Statistics) -> None:
        self._node = node
        self._statistics = statistics
        self._static = StaticFiles()
        self._runs = Runs()
        self._is_local = _is_loopback(node.config.http_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        held = Held(self._node.broker.memory)
        try:
            await self._serve(scope, receive, send, held)
        finally:
            held.release()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, held: Held) -> None:
        try:
            response = await self._respond(Request(scope, receive), scope["raw_path"].decode("ascii"), held)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  # the edge: every error becomes a response, defects are logged too
            response = _refusal(error, f"{scope['method']} {scope['path']}")
        if scope["path"].startswith(PRIVATE_PATHS):
            response.headers.setdefault("cache-control", "no-store")
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            response.headers["holtmq-instance"] = self._node.instance
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, request: Request, path: str, held: Held) -> Response:
        self._refuse_foreign(request)
        if path.startswith("/api/") and path not in ("/api/index.html", "/api/"):
            return await self._call(request, path, held)
        if request.method not in ("GET", "HEAD"):
            reason = f"expected GET or HEAD, got {request.method}"
            return _plain_refusal(405, "method_not_allowed", reason, {"allow": "GET, HEAD"})
        if path in ("/metrics", "/metrics/per-object"):
            if self._node.config.metrics_login:
                await self._authenticate(request, Need.MONITORING)
            return await metrics_page(self._node, per_object=path.endswith("per-object"))
        if path.startswith("/reports/"):
            return await self._report(request, path, held)
        return self._static.respond(path, request.headers.get("if-none-match"))

    def _refuse_foreign(self, request: Request) -> None:
        """Refuse what a browser sends on behalf of other sites: it may attach stored credentials to such requests.

        Refuse a body whose length a proxy could see differently, too: its end could be taken for another request.
        """
        if "transfer-encoding" in request.headers and (
            "content-length" in request.headers or request.scope["http_version"] != "1.1"
        ):
            raise AmbiguousLengthError("expected either Content-Length or Transfer-Encoding (HTTP/1.1), got both")
        host = request.headers.get("host", "")
        if self._is_local and not _is_local_host(host):
            raise ForeignRequestError(f"expected localhost or a loopback address in the Host header, got {host[:80]!r}")
        origin = request.headers.get("origin")
        if origin is not None and request.method not in SAFE_METHODS and origin.partition("://")[2] != host:
            raise ForeignRequestError(f"expected a request from this site's own pages, got Origin {origin[:80]!r}")
        fetched_from = request.headers.get("sec-fetch-site", "none")
        if fetched_from not in OWN_SITES and request.method not in SAFE_METHODS:
            raise ForeignRequestError(f"expected a request from this site's own pages, got {fetched_from[:80]!r}")

    async def _call(self, request: Request, path: str, held: Held) -> Response:
        if path == "/api/openapi.json":
            return Response(orjson.dumps(describe_api()), media_type="application/json")
        try:
            found = api.find(path.removesuffix("/") if request.method in SAFE_METHODS else path)
        except UnicodeDecodeError as error:
            return _plain_refusal(400, "bad_request", f"expected a path in UTF-8, got {path[:80]!r}: {error}")
        if found is None:
            await self._authenticate(request, Need.ANY)
            reason = f"no resource at {unquote(path)[:200]!r}: see /api/ for the list of operations"
            return _plain_refusal(404, "not_found", reason)
        by_method, values = found
        allowed = ", ".join(sorted({*by_method, "OPTIONS", *(["HEAD"] if "GET" in by_method else [])}))
        if request.method == "OPTIONS":
            return Response(headers={"allow": allowed})
        operation = by_method.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            reason = f"expected one of {allowed}, got {request.method}"
            return _plain_refusal(405, "method_not_allowed", reason, {"allow": allowed})
        caller = await self._authenticate(request, operation.need)
        named = dict(zip(operation.parameters, values, strict=True))
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        content = await held.read(request, operation.path)
        call = Call(self._node, self._statistics, caller, named, query, request.headers, content, self._runs, held)
        return await self._carry_out(operation, call)

    async def _carry_out(self, operation: Operation, call: Call) -> Response:
        result = operation.handler(call)
        if inspect.isawaitable(result):
            result = await result
        if operation.changes:
            await asyncio.wait_for(self._node.written(), DISK_TIMEOUT_S)
        elif isinstance(result, Items):
            result = await call.listing.present(result)
        elif isinstance(result, dict) and call.listing.page is None:
            result = call.listing.trim(result)
        return await answer(result)

    async def _authenticate(self, request: Request, need: Need) -> Caller:
        accounts, config = self._node.broker.authorization, self._node.config
        if need is Need.NOTHING:
            return Caller(User(""), accounts)
        peer = request.client.host if request.client is not None else None
        header = request.headers.get("authorization")
        passwords = self._node.passwords
        caller = await authenticate(header, peer, accounts, passwords, guest_from_anywhere=config.guest_from_anywhere)
        caller.require(Need.ANY)
        caller.require(need)
        return caller

    async def _report(self, request: Request, path: str, held: Held) -> Response:
        segments = path.split("/")
        if len(segments) != 4:
            raise NotFoundError(f"no resource at {path[:200]!r}")
        named = {"ticket": segments[2], "name": unquote(segments[3])}
        caller = Caller(User(""), Authorization())
        call = Call(self._node, self._statistics, caller, named, {}, request.headers, b"", self._runs, held)
        return await resources.reports.serve_report(call)


REFUSALS: tuple[tuple[tuple[type[Exception], ...], int, str], ...] = (
    ((UnauthorisedError, AccessRefusedError, NotAllowedError, LoginRefusedError), 401, "not_authorised"),
    ((NotFoundError,), 404, "not_found"),
    ((ForeignRequestError,), 403, "forbidden"),
    ((PageOutOfRangeError,), 400, "page_out_of_range"),
    ((StoreError,), 503, "store_error"),
)
"""Errors whose status is not 400."""


def _refusal(error: Exception, what: str) -> Response:
    match error:
        case UnauthenticatedError():
            return _plain_refusal(401, "not_authorized", str(error), {"www-authenticate": REALM})
        case TooLargeError():
            return _plain_refusal(413, "payload_too_large", str(error), {"connection": "close"})
        case AmbiguousLengthError():
            return _plain_refusal(400, "bad_request", str(error), {"connection": "close"})
        case BusyError():
            return _plain_refusal(503, "busy", str(error), {"connection": "close", "retry-after": "1"})
        case TimeoutError():
            reason = f"the change was applied but not written to disk within {DISK_TIMEOUT_S:g} s: check the disk and the log"
            return _plain_refusal(503, "disk", reason)
        case RecursionError():
            return _plain_refusal(400, "bad_request", "the JSON is nested too deeply to be read")
        case HoltmqError():
            found = (entry for entry in REFUSALS if isinstance(error, entry[0]))
            _, status, name = next(found, (None, 400, "bad_request"))
            return _plain_refusal(status, name, str(error))
    log.error("internal error at %s", what, exc_info=error)
    return _plain_refusal(500, "internal_error", "the broker failed to handle the request: see its log for details")


def _plain_refusal(status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    content = orjson.dumps({"error": error, "reason": reason.encode("utf-8", "replace").decode()})
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")


def _is_local_host(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    return name in LOCAL_NAMES or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOCAL_NAMES
