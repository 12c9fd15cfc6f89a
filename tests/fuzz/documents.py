"""Fuzz targets: files and requests that users write."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from holtmq.accounts import Permission, User
from holtmq.broker.broker import Broker
from holtmq.broker.definitions_export import export_definitions
from holtmq.broker.definitions_import import import_definitions
from holtmq.config import load_config
from holtmq.errors import HoltmqError
from holtmq.management.listing import Listing
from holtmq.management.operations import api
from holtmq.routing.check import check
from holtmq.routing.topic import TopicMatcher
from holtmq.steps import complete
from holtmq.store.null_journal import NullJournal
from holtmq.topology import Binding, Topology, definitions_file
from tests.fuzz.choices import Choices

VALUES: Sequence[Any] = (
    "q", "", "x", "/", "v2", "guest", "amq.topic", "amq.new", "amq.gen-1", ".*", "^q$", "(", "a" * 256, "é" * 128, "\ud800",
    "\0", "topic", "headers", "queue", "exchange", "queues", "exchanges", "all", "administrator,monitoring", "SGVsbG8gd29ybGQ=",
    "rabbit_password_hashing_sha512", "rabbit_password_hashing_md5", "2024-01-31T12:00:00+00:00",
    True, False, None, 0, 1, -1, 2**31, 2**63, 1.5, 1e308, [], {}, [1], ["administrator"], {"a": [{"b": []}]}, {"": {}},
    {"x-message-ttl": 1}, {"x-max-length": "1"}, {"x-match": "any"}, {"x-match": 1}, {"x-queue-type": "stream"},
    {"x-max-priority": 255}, {"max-length": 5}, {"max-length": -5}, {"message-ttl": "1"}, {"alternate-exchange": 1},
    {"dead-letter-exchange": None}, {"a": "\ud800"}, {"$bytes": "eA=="}, {"$bytes": 1}, {"$timestamp": 10**17},
    {"$timestamp": 1}, {"$decimal": "1e999999"}, {"$decimal": "1.5"}, {"$table": {"$bytes": 1}},
)  # fmt: skip
"""Values that are valid in some field, and invalid in others."""
SECTIONS: Mapping[str, Sequence[str]] = {
    "exchanges": ("name", "type", "vhost", "durable", "auto_delete", "internal", "arguments", "more"),
    "queues": ("name", "vhost", "durable", "auto_delete", "exclusive", "arguments", "more"),
    "bindings": ("source", "destination", "destination_type", "routing_key", "vhost", "arguments", "created_at", "metadata"),
    "policies": ("name", "pattern", "definition", "vhost", "apply-to", "priority", "more"),
    "users": ("name", "password", "password_hash", "hashing_algorithm", "tags", "limits"),
    "vhosts": ("name", "description", "tags", "default_queue_type", "metadata"),
    "permissions": ("user", "vhost", "configure", "write", "read"),
    "topic_permissions": ("user", "vhost", "exchange", "write", "read"),
    "parameters": ("name", "component", "vhost", "value"),
    "global_parameters": ("name", "value"),
}
ITEMS: Sequence[dict[str, Any]] = (
    {"name": "a", "n": 1, "deep": {"x": [1]}}, {"name": "B", "n": None}, {"name": "", "n": "2"}, {"name": "c", "n": {}},
)  # fmt: skip


def definitions(data: bytes) -> None:
    """Import any definitions into a broker: all of them or none, and what was imported can be exported and imported again."""
    text, broker = json.dumps(_document(Choices(data))).encode(), _broker()
    before = _exported(broker)
    try:
        document = Topology(*definitions_file.read(definitions_file.parse(text), "/"))
        complete(import_definitions(broker, document))
    except HoltmqError as error:
        str(error).encode(errors="replace")
        assert _exported(broker) == before, "a refused document changed the broker"
        return
    exported = _exported(broker)
    complete(import_definitions(broker, document))
    assert _exported(broker) == exported, "a second import changed the broker"
    other = Broker(NullJournal())
    export = {name: list(entries) for name, entries in export_definitions(broker).items()}
    complete(import_definitions(other, Topology.from_definitions(export)))
    assert _exported(other) == exported, "the export is not equal to what was imported"


def _broker() -> Broker:
    broker = Broker(NullJournal())
    broker.add_vhost("/")
    broker.set_user(User("guest"))
    broker.set_permission(Permission("guest", "/"))
    return broker


def _document(choices: Choices) -> dict[str, Any]:
    """Build definitions of any entries; most fields have the name that the section expects."""
    document: dict[str, Any] = {}
    while not choices.is_over:
        section = choices.pick(tuple(SECTIONS))
        names = SECTIONS[section]
        entry = {choices.pick(names): choices.pick(VALUES) for _ in range(choices.number(8))}
        whole = {**dict.fromkeys(names[:2], "q"), **entry} if choices.flag() else entry
        document.setdefault(section, []).append(whole)
    return document


def _exported(broker: Broker) -> dict[str, list[str]]:
    """Return the entries of an export as JSON, without order and without the hashes of passwords, which have a random salt."""
    document = {name: list(entries) for name, entries in export_definitions(broker).items()}
    document["users"] = [{**user, "password_hash": bool(user["password_hash"])} for user in document["users"]]
    return {name: sorted(json.dumps(entry, sort_keys=True) for entry in entries) for name, entries in document.items()}


def topology(data: bytes) -> None:
    """Read a definitions file, check it, and write and read it again."""
    try:
        found = Topology(*definitions_file.read(definitions_file.parse(data), "/"))
    except HoltmqError:
        return
    check(found)
    written = json.dumps(found.to_definitions())
    assert Topology.from_definitions(json.loads(written)).to_definitions() == json.loads(written)


def config(data: bytes) -> None:
    """Read a configuration file."""
    with tempfile.NamedTemporaryFile(suffix=".toml") as file, suppress(HoltmqError):
        Path(file.name).write_bytes(data)
        load_config(file.name)


def patterns(data: bytes) -> None:
    """Match a routing key with topic patterns, one on each line: the trie agrees with the judge, also after removals."""
    key, *lines = data.decode("latin-1").split("\n")[:20]
    bindings = [Binding("x", f"q{number}", line[:60]) for number, line in enumerate(lines)]
    matcher = TopicMatcher()
    for binding in bindings:
        matcher.add(binding)
    while True:
        matched = {binding for binding in bindings if matcher.judge(binding, key[:200], {}).is_match}
        assert set(matcher.match(key[:200], {})) == matched
        for binding in matched:
            assert set(matcher.covering(binding)) <= matched, "a pattern covers another and does not match its key"
        if not bindings:
            return
        matcher.remove(bindings.pop(len(bindings) // 2))


def requests(data: bytes) -> None:
    """Read the path and the query of an HTTP request, one on each line, and apply the query to a list."""
    path, query = (*data.decode("latin-1").split("\n", 1), "")[:2]
    with suppress(UnicodeDecodeError):  # a refusal: the path is not in UTF-8
        api.find(f"/api/{path}")
    with suppress(HoltmqError):
        listing = Listing.of(dict(parse_qsl(query, keep_blank_values=True)))
        json.dumps([listing.trim(item) for item in ITEMS if listing.matches(item["name"])])
