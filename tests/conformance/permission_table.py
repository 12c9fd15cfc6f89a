"""The table of permissions: what each kind of user may do over AMQP and HTTP, in a text file that runs on HoltMQ and RabbitMQ.

A line `user NAME key=value …` describes a kind of user. The keys `configure`, `write` and `read` are its permissions in the
vhost `own`, or in the vhost of the key `vhost`; `topic.write` and `topic.read` are its topic permissions for the exchange `t`;
`tags` are its tags. A user without these keys has no permissions.

A section starts with `## title`. Its line `as NAME …` names the users of its columns. Each line after that is an operation,
followed by its outcome for each of these users:

    ok                  the operation was carried out
    403, 405, 530, …    the reply code that closed the channel or the connection, or the status of a response
    own, other, all     the vhosts whose objects a list contained
    none                an empty list

The operations are AMQP methods with their arguments (`permission_targets.py` has them all), and HTTP requests with their JSON
body. `a~b` stands for `a` on HoltMQ and `b` on RabbitMQ; a line `~ reason` above says why. A line that starts with `+` is an
operation that only HoltMQ has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("permissions.cases")
TABLE = re.compile(r" (\{.*\})$")
OWN, OTHER, SPARE = "own", "other", "spare"


@dataclass(frozen=True, slots=True)
class Account:
    """A kind of user."""

    name: str
    vhost: str
    permissions: Mapping[str, str]
    topic_permissions: Mapping[str, str]
    tags: str


@dataclass(frozen=True, slots=True)
class PermissionRow:
    """An operation and its outcomes, one for each user of the section."""

    operation: str
    holtmq: tuple[str, ...]
    rabbitmq: tuple[str, ...] | None
    """None if RabbitMQ does not have the operation."""
    reason: str = ""
    """Why the two differ."""

    @property
    def words(self) -> Sequence[str]:
        found = TABLE.search(self.operation)
        words = (self.operation[: found.start()] if found else self.operation).split()
        return ["" if word == '""' else word for word in words]

    @property
    def table(self) -> Mapping[str, Any]:
        found = TABLE.search(self.operation)
        return json.loads(found[1]) if found else {}

    @property
    def is_http(self) -> bool:
        return " /api/" in self.operation


@dataclass(frozen=True, slots=True)
class PermissionSection:
    title: str
    users: tuple[str, ...]
    rows: tuple[PermissionRow, ...]


def load_accounts() -> list[Account]:
    return [_account(line) for line in FILE.read_text().splitlines() if line.startswith("user ")]


def load_permissions() -> list[PermissionSection]:
    return list(_sections(FILE.read_text().splitlines()))


def _account(line: str) -> Account:
    _, name, *pairs = line.split()
    values = dict(pair.split("=", 1) for pair in pairs)
    rights: dict[str, str] = {right: values[right] for right in ("configure", "write", "read") if right in values}
    topics: dict[str, str] = {right: values[f"topic.{right}"] for right in ("write", "read") if f"topic.{right}" in values}
    return Account(name, values.get("vhost", OWN), rights, topics, values.get("tags", ""))


def _sections(lines: Sequence[str]) -> Iterator[PermissionSection]:
    title, users, rows, reason = "", tuple[str, ...](), list[PermissionRow](), ""
    for line in [*lines, "## end"]:
        if line.startswith("## "):
            if rows:
                yield PermissionSection(title, users, tuple(rows))
            title, rows = line[3:], []
        elif line.startswith("as "):
            users = tuple(line.split()[1:])
        elif line.startswith("~ "):
            reason = line[2:]
        elif line.strip() and not line.startswith(("#", "user ")):
            rows.append(_row(line, len(users), reason))
            reason = ""


def _row(line: str, columns: int, reason: str) -> PermissionRow:
    operation, *cells = line.rsplit(maxsplit=columns)
    of_holtmq = tuple(cell.split("~")[0] for cell in cells)
    of_rabbitmq = tuple(cell.split("~")[-1] for cell in cells)
    if operation.startswith("+ "):
        return PermissionRow(operation[2:].strip(), of_holtmq, None, reason)
    assert len(cells) == columns, f"expected {columns} outcomes: {line}"
    return PermissionRow(operation.strip(), of_holtmq, of_rabbitmq, reason)
