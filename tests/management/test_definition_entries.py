"""An import refuses what a request refuses, for the same reason, and then changes nothing."""

from __future__ import annotations

from typing import Any

from tests.management.http import Http, assert_answer

LONG = "x" * 300
POLICY = {"pattern": "^q$", "definition": {"max-length": 1}}
RIGHTS = {"configure": "", "write": ".*", "read": "^q"}
TOPIC_RIGHTS = {"exchange": "amq.topic", "write": ".*", "read": ""}
SHA256 = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("policies", {**POLICY, "pattern": "("}, "pattern: expected a regular expression, got '(': missing )"),
    ("policies", {**POLICY, "pattern": r"^(a)\1$"}, "a backreference"),
    ("policies", {**POLICY, "pattern": "^(?!amq)"}, "look-ahead"),
    ("policies", {**POLICY, "pattern": 5}, "pattern: expected a string, got integer 5"),
    ("policies", {**POLICY, "definition": {}}, "definition: expected at least one setting"),
    ("policies", {**POLICY, "definition": {"message-ttl": 2**63 - 1}}, "definition.message-ttl: expected a number"),
    ("policies", {**POLICY, "definition": {"max-length": "5"}}, "definition.max-length: expected a number"),
    ("policies", {**POLICY, "definition": {"overflow": "sideways"}}, "definition.overflow: expected one of"),
    ("policies", {**POLICY, "definition": {"colour": "red"}}, "definition.colour: expected one of"),
    ("policies", {**POLICY, "apply-to": "people"}, "apply-to: expected one of"),
    ("policies", {**POLICY, "priority": 2**40}, "priority: expected an integer of 32 bits"),
    ("policies", {**POLICY, "name": LONG}, "a policy's name must be at most 255 bytes"),
    ("users", {"password": None, "tags": ""}, "password: expected a string, got null"),
    ("users", {"password": 5, "tags": ""}, "password: expected a string, got integer 5"),
    ("users", {"password": "x", "password_hash": SHA256, "tags": ""}, "password: expected either a password or"),
    ("users", {"password_hash": None, "tags": ""}, "password_hash: expected a string, got null"),
    ("users", {"password_hash": "!!!", "tags": ""}, "password_hash: expected a salt and a digest"),
    ("users", {"password_hash": SHA256, "hashing_algorithm": "rot13", "tags": ""}, "hashing_algorithm: expected one of"),
    ("users", {"password_hash": SHA256, "hashing_algorithm": "holtmq_password_hashing_scrypt", "tags": ""}, "password_hash"),
    ("users", {"password_hash": "", "tags": 5}, "tags: expected an array of strings"),
    ("users", {"password_hash": "", "tags": "", "name": LONG}, "a user's name must be at most 255 bytes"),
    ("permissions", {**RIGHTS, "read": "("}, "read: expected a regular expression"),
    ("permissions", {**RIGHTS, "write": "(?=a)"}, "look-ahead"),
    ("permissions", {"configure": ".*"}, "write: expected a string, got nothing"),
    ("topic_permissions", {**TOPIC_RIGHTS, "write": "*"}, "write: expected a regular expression"),
    ("topic_permissions", {"write": "", "read": ""}, "exchange: expected a string, got nothing"),
    ("vhosts", {"description": 5}, "description: expected a string"),
    ("vhosts", {"tags": 5}, "tags: expected an array of strings"),
    ("vhosts", {"name": LONG}, "a vhost's name must be at most 255 bytes"),
    ("parameters", {}, "value: expected the value of the parameter"),
    ("parameters", {"value": 1, "name": LONG}, "a parameter's name must be at most 255 bytes"),
    ("global_parameters", {}, "value: expected the value of the parameter"),
]
PATHS = {
    "policies": "/api/policies/%2F/{name}",
    "users": "/api/users/{name}",
    "permissions": "/api/permissions/%2F/guest",
    "topic_permissions": "/api/topic-permissions/%2F/guest",
    "vhosts": "/api/vhosts/{name}",
    "parameters": "/api/parameters/c/%2F/{name}",
    "global_parameters": "/api/global-parameters/{name}",
}
OWNERS: dict[str, dict[str, Any]] = {
    "policies": {"vhost": "/"},
    "permissions": {"user": "guest", "vhost": "/"},
    "topic_permissions": {"user": "guest", "vhost": "/"},
    "parameters": {"component": "c", "vhost": "/"},
}


def test_an_import_refuses_what_a_request_refuses_and_changes_nothing(http: Http) -> None:
    before = http.get("/api/definitions")
    for section, entry, reason in REFUSED:
        name = entry.get("name", "n")
        body = {key: value for key, value in entry.items() if key != "name"}
        assert_answer(http.call("PUT", PATHS[section].format(name=name), body), 400, reason)
        part = {"name": name, **OWNERS.get(section, {}), **entry}
        answer = http.post("/api/definitions", {"exchanges": [{"name": "e", "vhost": "/", "type": "topic"}], section: [part]})
        assert_answer(answer, 400, reason)
        assert f"{section}[0]" in answer.body["reason"]
    assert http.get("/api/definitions") == before


def test_an_import_refuses_empty_names(http: Http) -> None:
    before = http.get("/api/definitions")
    for section, entry in (
        ("vhosts", {}),
        ("users", {"password_hash": "", "tags": ""}),
        ("policies", {**POLICY, "vhost": "/"}),
        ("parameters", {"component": "c", "vhost": "/", "value": 1}),
        ("global_parameters", {"value": 1}),
    ):
        assert_answer(http.post("/api/definitions", {section: [{"name": "", **entry}]}), 400, "got an empty one")
    assert http.get("/api/definitions") == before


def test_a_user_without_a_password_cannot_log_in_with_one(http: Http) -> None:
    users = [{"name": "a", "password": ""}, {"name": "b", "password_hash": ""}, {"name": "c"}]
    assert http.post("/api/definitions", {"users": [{**user, "tags": "management"} for user in users]}).status == 204
    assert http.put("/api/users/d", {"password": "", "tags": "management"}) == 201
    assert http.put("/api/users/e", {"tags": "management"}) == 201
    for login in ("a:", "b:", "c:None", "d:", "e:"):
        assert http.as_user(login).call("GET", "/api/whoami").status == 401
