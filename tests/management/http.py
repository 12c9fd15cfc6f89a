"""A client of the HTTP API that returns status, headers and JSON as they are."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.deadline import PATIENCE_S, eventually


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Http:
    def __init__(self, base: str, login: str | None = "guest:guest") -> None:
        self.base = base
        self.login = login

    def as_user(self, login: str | None) -> Http:
        return Http(self.base, login)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request. A body of bytes is sent as it is, any other as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = Request(self.base + path, data, {"content-type": "application/json"}, method=method)
        if self.login is not None:
            request.add_header("authorization", f"Basic {base64.b64encode(self.login.encode()).decode()}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urlopen(request, timeout=PATIENCE_S) as response:
                return _answer(response.status, response.read(), response.headers)
        except HTTPError as error:
            with error:
                return _answer(error.code, error.read(), error.headers)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.body

    def get_until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Repeat a request until its answer satisfies a condition, and return the answer."""
        answers: list[Any] = []

        def is_there() -> bool:
            answers[:] = [self.get(path)]
            return holds(answers[0])

        eventually(is_there, f"an answer of {path}")
        return answers[0]

    def message_count(self, queue: str) -> int:
        messages: int = self.get(f"/api/queues/%2F/{segment(queue)}")["messages"]
        return messages

    def put(self, path: str, body: Any = None) -> int:
        return self.call("PUT", path, {} if body is None else body).status

    def post(self, path: str, body: Any) -> Answer:
        return self.call("POST", path, body)

    def delete(self, path: str) -> int:
        return self.call("DELETE", path).status


def segment(name: str) -> str:
    """Encode a name for one segment of a path."""
    return quote(name, safe="")


def assert_answer(answer: Answer, status: int, reason: str) -> None:
    """Check the status of an answer and, if it is an error, that its reason contains a text."""
    assert answer.status == status, answer
    if status >= 400:
        assert reason in answer.body["reason"]


def _answer(status: int, content: bytes, headers: Any) -> Answer:
    is_json = "json" in (headers.get("content-type") or "")
    return Answer(status, json.loads(content) if is_json and content else content.decode(), dict(headers.items()))
