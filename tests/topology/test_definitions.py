"""RabbitMQ's definitions JSON: real exports survive a round trip, and an invalid file is not imported."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from holtmq import Binding, DefinitionsError, Exchange, Queue, Router, Topology
from holtmq.table import FieldValue
from tests.management.http import Http
from tests.peers.rabbitmq import RabbitMQ
from tests.test_table import fields
from tests.topology.record_exports import FOLDER, furnished

EXPORTS = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", ["rabbitmqctl", "http"])
def test_a_whole_export_of_rabbitmq_survives_without_any_loss(name: str) -> None:
    original = json.loads(EXPORTS[name].read_text())
    assert Topology.from_definitions(EXPORTS[name]).to_definitions() == original


def test_the_export_of_one_vhost_survives_without_any_loss() -> None:
    original = json.loads(EXPORTS["http-vhost"].read_text())
    topology = Topology.from_definitions(EXPORTS["http-vhost"], vhost="shop")
    assert {exchange.vhost for exchange in topology.exchanges} == {"shop"}
    assert topology.to_definitions(vhost="shop") == original


def test_one_vhost_can_be_exported_out_of_many() -> None:
    topology = Topology.from_definitions(EXPORTS["http"])
    one = topology.to_definitions(vhost="shop")
    assert {entry["name"] for entry in one["queues"]} == {"laptops", "all", "quorum", "short-lived"}
    assert not {"users", "vhosts", "permissions", "global_parameters"} & one.keys()
    assert all("vhost" not in entry for section in ("exchanges", "queues", "bindings") for entry in one[section])


def test_a_topology_read_from_an_export_routes() -> None:
    topology = Topology.from_definitions(str(EXPORTS["rabbitmqctl"]))
    assert set(topology.vhosts) == {"/", "shop"}
    router = Router(topology, "shop")
    assert router.route("orders", "orders.eu.laptops.cheap") == ("all", "laptops")
    assert router.resolve("orders", "orders.eu.laptops").entries["laptops"].priority == 5
    assert router.route("docs", "", {"array": [1, "a", [2.0, True], {"k": 1}]}) == ("all",)
    assert router.route("passing", "ключ.☃") == ("short-lived",)


def test_sections_that_nobody_knows_survive() -> None:
    document = {"exchanges": [], "made_up": {"deep": [1, 2.5, None, {"big": 10**30}]}, "other": "text"}
    written = Topology.from_definitions(document).to_definitions()
    assert {name: written[name] for name in ("made_up", "other")} == {"made_up": document["made_up"], "other": "text"}


def test_fields_that_nobody_knows_survive() -> None:
    document: dict[str, Any] = {
        "exchanges": [{"name": "x", "type": "topic", "colour": {"r": 1}}],
        "queues": [{"name": "q", "type": "classic"}],
        "bindings": [{"source": "x", "destination": "q", "routing_key": "k", "note": ["a"]}],
        "policies": [{"name": "p", "pattern": "", "definition": {}, "owner": "me"}],
    }
    written = Topology.from_definitions(document).to_definitions()
    for section, field in (("exchanges", "colour"), ("queues", "type"), ("bindings", "note"), ("policies", "owner")):
        assert written[section][0][field] == document[section][0][field]


def test_creation_time_and_metadata_of_a_binding_survive() -> None:
    created = datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)
    binding = Binding("x", "q", "k", created_at=created, metadata={"plugin": {"weight": 2.0, "raw": b"\x00"}})
    document = json.loads(json.dumps(Topology((Exchange("x"),), (Queue("q"),), (binding,)).to_definitions()))
    (read,) = Topology.from_definitions(document).bindings
    assert (read.created_at, read.metadata) == (created, binding.metadata)


@given(fields)
def test_arguments_of_every_type_survive(arguments: dict[str, FieldValue]) -> None:
    for reserved in ("alternate-exchange", "x-priority", "x-message-ttl"):
        arguments.pop(reserved, None)
    topology = Topology((Exchange("x", arguments=arguments),), (Queue("q"),), (Binding("x", "q", "k", arguments),))
    assert Topology.from_definitions(json.loads(json.dumps(topology.to_definitions()))) == topology


def test_what_is_said_twice_counts_once() -> None:
    parts = {name: VALID[name] for name in ("exchanges", "queues", "bindings", "policies")}
    doubled = {name: 2 * entries for name, entries in parts.items()}
    assert Topology.from_definitions(doubled) == Topology.from_definitions(parts)


VALID: dict[str, Any] = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": "guest", "password_hash": "x"}],
    "permissions": [{"user": "guest", "vhost": "/"}],
    "exchanges": [
        {"name": "x", "vhost": "/", "type": "topic"},
        {"name": "h", "vhost": "/", "type": "headers"},
        {"name": "c", "vhost": "/", "type": "x-consistent-hash"},
    ],
    "queues": [{"name": "q", "vhost": "/", "arguments": {"a": {"b": [1]}}}],
    "bindings": [
        {"source": "h", "destination": "q", "vhost": "/", "routing_key": "k", "arguments": {}},
        {"source": "c", "destination": "q", "vhost": "/", "routing_key": "1", "arguments": {}},
    ],
    "policies": [{"name": "p", "vhost": "/", "pattern": "^x", "definition": {}, "priority": 0}],
}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("exchanges", {}, "exchanges: expected an array, got table of 0"),
        ("exchanges.0", "x", "exchanges[0]: expected an object, got string 'x'"),
        ("exchanges.1.name", 5, "exchanges[1].name: expected a string, got integer 5"),
        ("exchanges.0.type", None, "exchanges[0].type: expected a string, got null"),
        ("exchanges.0.durable", "yes", "exchanges[0].durable: expected true or false, got string 'yes'"),
        ("exchanges.0.arguments", "none", "exchanges[0].arguments: expected an object, got string 'none'"),
        ("exchanges.0.arguments", {"alternate-exchange": 1}, "exchanges[0]: argument 'alternate-exchange'"),
        ("exchanges.0.name", "n" * 256, "exchanges[0]: the name of an exchange must be at most 255 bytes"),
        ("exchanges.1.name", "x", "exchanges[1]: 'x' in vhost '/' is defined differently at exchanges[0]"),
        ("queues.0.name", None, "queues[0].name: expected a string, got null"),
        ("queues.0.arguments.a.b", [2**70], "queues[0].arguments: the value of 'b' must be an integer of at most 64 bits"),
        ("queues.0.arguments.a", {"$bytes": 1}, "queues[0].arguments.a.$bytes: expected a value of that type, got integer 1"),
        ("bindings.0.source", [], "bindings[0].source: expected a string, got array of 0"),
        (
            "bindings.0.destination_type",
            "topic",
            "bindings[0]: the destination type of a binding must be 'queue' or 'exchange'",
        ),
        ("bindings.0.routing_key", "k" * 256, "bindings[0]: a routing key must be at most 255 bytes in UTF-8, got 256"),
        ("bindings.0.arguments", {"x-match": "some"}, "bindings[0].arguments.x-match: argument 'x-match' must be one of all"),
        ("bindings.1.routing_key", "heavy", "bindings[1].routing_key: the routing key of a binding of an x-consistent-hash"),
        ("bindings.0.arguments", {"x-priority": 256}, "bindings[0]: binding argument 'x-priority' must be an integer from 0"),
        ("bindings.0.created_at", "yesterday", "bindings[0].created_at: expected a time such as 2024-01-31T12:00:00+00:00"),
        ("bindings.0.vhost", 1, "bindings[0].vhost: expected a string, got integer 1"),
        ("policies.0.pattern", "(", "policies[0].pattern: expected a regular expression, got '('"),
        ("policies.0.apply-to", "moons", "policies[0].apply-to: expected one of all, queues, exchanges"),
        ("policies.0.priority", 1.5, "policies[0].priority: expected an integer, got number 1.5"),
        ("users.0", {}, "users[0].name: expected a string, got nothing"),
        ("vhosts.0.name", 3, "vhosts[0].name: expected a string, got integer 3"),
        ("permissions", "all", "permissions: expected an array, got string 'all'"),
    ],
)
def test_an_invalid_document_is_refused_with_the_path_of_the_bad_value(path: str, value: object, problem: str) -> None:
    document = copy.deepcopy(VALID)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = document
    for step in parents:
        place = place[step]
    place[last] = value
    with pytest.raises(DefinitionsError) as refusal:
        Topology.from_definitions(document)
    assert problem in str(refusal.value)
    assert refusal.value.reply_code == 406


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "document: expected JSON, got line 1 column 1"),
        (b'{"exchanges": [}', "document: expected JSON, got line 1 column 16"),
        (b"[]", "document: expected an object with exchanges, queues and bindings, got array of 0"),
        (b"null", "got null"),
        (b"\xff\xfe\x00", "document: expected JSON"),
        (b'{"a": NaN}', "document: expected JSON, got NaN"),
        (b'{"a": 1e999}', "document: expected a number of at most 64 bits, got 1e999"),
        (b'{"a": ' + b"9" * 5000 + b"}", "document: expected an integer of at most 64 bits, got one with 5000 digits"),
        (b'{"a": "\\ud800"}', "document: expected text that UTF-8 can encode"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"queues": [{"name": "q", "arguments": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}]}", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_definitions_file_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    file = tmp_path / "definitions.json"
    file.write_bytes(text)
    with pytest.raises(DefinitionsError) as refusal:
        Topology.from_definitions(file)
    assert problem in str(refusal.value)


@pytest.mark.rabbitmq
def test_rabbitmq_takes_what_we_export_and_exports_it_again(rabbitmq: RabbitMQ) -> None:
    http = Http(f"http://127.0.0.1:{rabbitmq.http_port}")
    try:
        with furnished(rabbitmq):
            exported = Topology.from_definitions(http.get("/api/definitions"))
        ours = exported.to_definitions()
        ours["bindings"] = [b for b in ours["bindings"] if b["destination"] != "mine"]  # of the exclusive queues, now gone
        rabbitmq.clear()
        assert http.post("/api/definitions", ours).status == 204
        again = Topology.from_definitions(http.get("/api/definitions"))
    finally:
        rabbitmq.clear()
    expected = Topology.from_definitions(ours)
    for part in ("exchanges", "queues", "bindings", "policies"):
        assert set(getattr(again, part)) == set(getattr(expected, part))
