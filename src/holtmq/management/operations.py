"""The operations of the HTTP API. Each is a function registered under a method and a path, with its documentation.

Names of exchanges and queues can contain slashes, percent-encoded in a path. A path is therefore split into segments before
it is decoded. Web frameworks decode it first.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

from starlette.responses import Response

from holtmq.broker.channel import Channel
from holtmq.broker.consumer import Consumer
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, InvalidValueError, NotFoundError
from holtmq.management.access import Caller, Need
from holtmq.management.bodies import Held
from holtmq.management.json_stream import parse, pieces_of, streamed
from holtmq.management.listing import Listing
from holtmq.management.node import ConnectedClient, Node
from holtmq.management.pipeline_runs import Runs
from holtmq.management.slices import finish
from holtmq.management.statistics import Span, Statistics
from holtmq.steps import Steps, complete
from holtmq.table import describe
from holtmq.topology.definitions_file import Fields

Handler: TypeAlias = "Callable[[Call], Any | Awaitable[Any]]"
Schema: TypeAlias = Mapping[str, Any]
BODY = "body"
ANY = "/"
"""The key for any one segment of a path. No segment can contain a slash."""
NUMBER = re.compile(r"-?[0-9]{1,18}")
MAX_CHART_SAMPLES = 1000


class BodyFields(Fields):
    """The fields of a request's body. Booleans and integers may be strings, as rabbitmqadmin sends them."""

    def __init__(self, document: object) -> None:
        super().__init__(document, BODY)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self._fields.get(name)
        return text == "true" if text in ("true", "false") else super().flag(name, default=default)

    def integer(self, name: str, default: int) -> int:
        text = self._fields.get(name)
        return int(text) if isinstance(text, str) and NUMBER.fullmatch(text) else super().integer(name, default)


class Outcome:
    """A response without a body."""

    def __init__(self, status: int, location: str | None = None) -> None:
        self.status = status
        self.location = location


NO_CONTENT = Outcome(204)


def created(*, is_new: bool, location: str | None = None) -> Outcome:
    """Return 201 for a new object and 204 for an existing one."""
    return Outcome(201, location) if is_new else NO_CONTENT


class Inbox:
    """The client side of a channel that the API opens. It records returned and rejected messages."""

    is_writable = True

    def __init__(self) -> None:
        self.returned: list[QueuedMessage] = []
        self.refused: list[int] = []

    def deliver(self, consumer: Consumer, first_tag: int, messages: Any, redelivered: Any) -> None:
        raise AssertionError("the API does not consume")

    def deliver_row(self, consumer: Consumer, first_tag: int, row: Any) -> None:
        raise AssertionError("the API does not consume")

    def confirm(self, tag: int, *, multiple: bool) -> None: ...
    def refuse(self, tag: int) -> None:
        self.refused.append(tag)

    def give_back(self, message: QueuedMessage) -> None:
        self.returned.append(message)

    def cancel(self, consumer: Consumer) -> None: ...
    def fail(self) -> None: ...


@dataclass(slots=True)
class Call:
    """A request as its operation sees it."""

    node: Node
    statistics: Statistics
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes
    runs: Runs
    held: Held

    @property
    def vhost(self) -> VirtualHost:
        """The vhost named in the path. The caller must be allowed to enter it."""
        vhost = self.node.broker.vhosts.get(self.path["vhost"])
        if vhost is None:
            raise NotFoundError(f"no vhost {self.path['vhost']!r}")
        self.caller.require_vhost(vhost.name)
        return vhost

    @property
    def vhosts(self) -> list[VirtualHost]:
        """The vhost named in the path, or all vhosts that the caller may enter."""
        if "vhost" in self.path:
            return [self.vhost]
        return [vhost for name, vhost in sorted(self.node.broker.vhosts.items()) if self.caller.may_enter(name)]

    @property
    def listing(self) -> Listing:
        """The list parameters of the query."""
        return Listing.of(self.query)

    def span(self, kind: str) -> Span | None:
        """Return the requested chart of a kind: `lengths`, `msg_rates` or `data_rates`."""
        if f"{kind}_age" not in self.query or f"{kind}_incr" not in self.query:
            return None
        numbers = [self.query[f"{kind}_age"], self.query[f"{kind}_incr"]]
        if not all(number.isascii() and number.isdigit() and int(number[:9]) > 0 for number in numbers):
            raise InvalidValueError(f"{kind}_age and {kind}_incr: expected seconds as integers above 0, got {numbers}")
        age_s, step_s = (int(number[:9]) for number in numbers)
        if age_s // step_s > MAX_CHART_SAMPLES:
            raise InvalidValueError(
                f"{kind}_age: expected at most {MAX_CHART_SAMPLES} steps of {kind}_incr, got {age_s // step_s}"
            )
        return Span(age_s, step_s)

    def flag(self, name: str) -> bool:
        """Return whether a parameter of the query is true."""
        return self.query.get(name) == "true"

    def document(self) -> Any:
        """Return the body, parsed as JSON."""
        return complete(self._parsed())

    def _parsed(self) -> Steps[Any]:
        if not self.content:
            return {}
        try:
            return (yield from parse(self.content))
        except ValueError as error:
            raise DefinitionsError(BODY, f"expected JSON, got {error}") from error

    def mapping(self) -> Mapping[str, Any]:
        """Return the body as a JSON object."""
        return _mapping(self.document())

    async def large_mapping(self) -> Mapping[str, Any]:
        """Return the body as a JSON object, which is read in slices."""
        return _mapping(await finish(self._parsed()))

    def fields(self) -> BodyFields:
        """Return the body as a JSON object whose fields are checked as they are read."""
        return BodyFields(self.document())

    @contextmanager
    def channel(self, vhost: VirtualHost) -> Iterator[tuple[Channel, Inbox]]:
        """Open a channel with the caller's permissions, in a turn of the broker."""
        self.node.begin_turn()
        session, inbox = self.node.broker.open_session(self.caller.user, vhost.name), Inbox()
        try:
            yield session.open_channel(1, inbox), inbox
        finally:
            self.node.begin_turn()  # the caller may have let the previous one end
            self.node.broker.chores.add("closing a session", f"an HTTP request of {self.caller.user.name!r}", session.close)

    def clients(self) -> list[ConnectedClient]:
        """Return the clients that the caller is allowed to see, by name."""
        clients = sorted((client for client in self.node.clients if client.session is not None), key=lambda one: one.name)
        if self.caller.has(Need.MONITORING):
            return clients
        return [client for client in clients if client.session and client.session.user.name == self.caller.user.name]


def _mapping(document: object) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise DefinitionsError(BODY, f"expected an object, got {describe(document)}")
    return document


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of the API with its method, path and documentation."""

    method: str
    path: str
    """The path, with parameters in braces."""
    handler: Handler
    summary: str
    need: Need
    body: Schema | None
    query: tuple[str, ...]
    answers: Mapping[int, Schema | None]

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of the path."""
        return tuple(self.path.strip("/").split("/"))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(segment[1:-1] for segment in self.segments if segment.startswith("{"))

    @property
    def changes(self) -> bool:
        """Whether the operation changes anything."""
        return self.method != "GET"


OBJECT: Schema = {"type": "object"}
LIST: Schema = {"type": "array", "items": {"type": "object"}}
LIST_OR_PAGE: Schema = {"anyOf": [LIST, {"type": "object", "required": ["items", "page_count"]}]}
LISTING = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns")
CHARTS = (
    "lengths_age", "lengths_incr", "msg_rates_age", "msg_rates_incr", "data_rates_age", "data_rates_incr",
)  # fmt: skip


@dataclass(slots=True)
class Operations:
    """All operations, found by method and path."""

    every: list[Operation] = field(default_factory=list)
    _tree: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        method: str,
        path: str,
        *,
        need: Need = Need.ANY,
        body: Schema | None = None,
        query: Sequence[str] = (),
        answers: Mapping[int, Schema | None] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a function under a method and a path. The first line of its docstring is the summary."""

        def register(handler: Handler) -> Handler:
            summary = (handler.__doc__ or "").strip().split("\n", maxsplit=1)[0]
            assert summary, f"{method} {path} has no docstring"
            operation = Operation(method, path, handler, summary, need, body, tuple(query), answers or {204: None})
            self.every.append(operation)
            branch = self._tree
            for segment in operation.segments:
                branch = branch.setdefault(ANY if segment.startswith("{") else segment, {})
            branch.setdefault("", {})[method] = operation
            return handler

        return register

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a function that returns one object."""
        return self.add("GET", path, **{"answers": {200: OBJECT}, **options})

    def collection(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a function that returns a list, or a page of it."""
        return self.add("GET", path, **{"answers": {200: LIST_OR_PAGE}, "query": LISTING, **options})

    def find(self, raw_path: str) -> tuple[Mapping[str, Operation], list[str]] | None:
        """Return the operations of a path by method, and the decoded values of its parameters."""
        branch, found = self._tree, []
        for segment in raw_path[1:].split("/"):
            if segment and segment in branch:
                branch = branch[segment]
            elif ANY in branch and segment:
                branch = branch[ANY]
                found.append(unquote(segment, errors="strict"))
            else:
                return None
        return (branch[""], found) if "" in branch else None


api = Operations()
"""All operations. The modules in `resources` register them."""


async def answer(value: Any) -> Response:
    """Turn the result of an operation into an HTTP response."""
    if isinstance(value, Response):
        return value
    if isinstance(value, Outcome):
        headers = {"location": value.location} if value.location else None
        return Response(status_code=value.status, headers=headers)
    return await streamed(pieces_of(value))
