"""Changes of users and permissions take effect on open connections, and on whatever the broker has remembered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.management.conftest import Node, running_node
from tests.management.http import Http

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
ANN = "/api/users/ann"
RIGHTS = "/api/permissions/%2F/ann"


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        node.http.put(ANN, {"password": "old", "tags": "management"})
        node.http.put(RIGHTS, ALL)
        yield node


@pytest.fixture
def ann(node: Node) -> Iterator[Channel]:
    with Amqp(node.amqp_port, user="ann", password="old") as amqp:
        channel = amqp.channel()
        channel.declare("q")
        channel.put("q", b"before")
        yield channel


@pytest.fixture
def as_ann(node: Node) -> Http:
    """The HTTP API with a password that the broker has checked and remembers."""
    ann = node.http.as_user("ann:old")
    assert ann.get("/api/whoami")["name"] == "ann"
    return ann


def closed(channel: Channel) -> tuple[str, int, str]:
    with pytest.raises(ClosedError) as error:
        channel.next()
    return error.value.scope, error.value.code, error.value.text


def refused(channel: Channel) -> int:
    with pytest.raises(ClosedError) as error:
        channel.settle()
    return error.value.code


def test_deleting_a_user_closes_its_connections_and_forgets_its_password(node: Node, ann: Channel, as_ann: Http) -> None:
    # As RabbitMQ 3.10.8 does it, with the same code and text.
    with node.connect() as other:
        bystander = other.channel()
        assert node.http.delete(ANN) == 204
        assert closed(ann) == ("connection", 320, "CONNECTION_FORCED - user 'ann' is deleted")
        bystander.settle()
    assert as_ann.call("GET", "/api/whoami").status == 401


def test_bulk_deletion_closes_connections_too(node: Node, ann: Channel) -> None:
    assert node.http.post("/api/users/bulk-delete", {"users": ["ann"]}).status == 204
    assert closed(ann)[:2] == ("connection", 320)


def test_clearing_permissions_closes_the_connections_to_the_vhost(node: Node, ann: Channel) -> None:
    node.http.put("/api/vhosts/other")
    node.http.put("/api/permissions/other/ann", ALL)
    with Amqp(node.amqp_port, user="ann", password="old", vhost="other") as elsewhere:
        channel = elsewhere.channel()
        assert node.http.delete(RIGHTS) == 204
        assert closed(ann)[:2] == ("connection", 320)
        channel.settle()


def test_changing_the_password_closes_connections_and_forgets_the_old_one(node: Node, ann: Channel, as_ann: Http) -> None:
    assert node.http.put(ANN, {"password": "old", "tags": "management"}) == 204  # the same password: nothing changes
    ann.settle()
    assert node.http.put(ANN, {"password": "new", "tags": "management"}) == 204
    assert closed(ann) == ("connection", 320, "CONNECTION_FORCED - the password of user 'ann' was changed")
    assert as_ann.call("GET", "/api/whoami").status == 401
    assert node.http.as_user("ann:new").call("GET", "/api/whoami").status == 200


def test_an_import_that_changes_a_password_closes_connections(node: Node, ann: Channel) -> None:
    same = {"users": [{"name": "ann", "password": "old", "tags": "management"}]}
    assert node.http.post("/api/definitions", same).status == 204
    ann.settle()
    assert node.http.post("/api/definitions", {"users": [{"name": "ann", "password_hash": "", "tags": ""}]}).status == 204
    assert closed(ann)[:2] == ("connection", 320)


def test_tags_apply_at_once(node: Node, ann: Channel, as_ann: Http) -> None:
    user = node.http.get(ANN)
    kept = {"password_hash": user["password_hash"], "hashing_algorithm": user["hashing_algorithm"]}
    node.http.put(ANN, {**kept, "tags": "impersonator"})
    ann.publish("", "q", user_id="bob")
    ann.settle()
    assert as_ann.call("GET", "/api/whoami").status == 401
    node.http.put(ANN, {**kept, "tags": ""})
    ann.publish("", "q", user_id="bob")
    assert refused(ann) == 406


def test_narrowed_permissions_apply_to_the_next_operation_and_cancel_consumers(node: Node, ann: Channel) -> None:
    ann.consume("q", "kept", no_ack=True)
    ann.declare("mine")
    ann.consume("mine", "mine", no_ack=True)
    assert ann.bodies(1) == [b"before"]
    node.http.put(RIGHTS, {"configure": "", "write": ".*", "read": "^mine$"})
    cancel = ann.next()
    assert (type(cancel.method), cancel.method.consumer_tag) == (wire.BasicCancel, "kept")
    ann.publish("", "q", b"unseen")
    ann.publish("", "mine", b"seen")
    assert ann.bodies(1) == [b"seen"]
    assert ann.is_silent()
    node.http.put(RIGHTS, {"configure": "", "write": "^mine$", "read": "^mine$"})
    ann.publish("", "mine", b"refused: this needs write access to the default exchange")
    assert refused(ann) == 403
    again = ann.reopen()
    with pytest.raises(ClosedError, match="403"):
        again.declare("new")


def test_topic_permissions_apply_to_the_next_message(node: Node, ann: Channel) -> None:
    ann.publish("amq.topic", "a.b")
    ann.settle()
    topics = "/api/topic-permissions/%2F/ann"
    node.http.put(topics, {"exchange": "amq.topic", "write": "^x", "read": ""})
    ann.publish("amq.topic", "a.b")
    assert refused(ann) == 403
    again = ann.reopen()
    node.http.delete(topics)
    again.publish("amq.topic", "a.b")
    again.settle()


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_topic_permissions_check_every_key_of_a_message(node: Node, ann: Channel, header: str) -> None:
    # RabbitMQ 3.10.8 checks the routing key only.
    node.http.put("/api/topic-permissions/%2F/ann", {"exchange": "amq.topic", "write": "^ok", "read": "^ok"})
    ann.bind("q", "amq.topic", "ok.#")
    ann.publish("amq.topic", "ok.1", headers={header: ["ok.2"]})
    ann.settle()
    assert ann.count("q") == 2
    ann.publish("amq.topic", "ok.1", headers={header: ["ok.2", "secret"]})
    assert refused(ann) == 403
    again = ann.reopen()
    assert again.count("q") == 2
    again.publish("amq.direct", "k", headers={header: ["secret"]})
    again.settle()


def test_a_passive_declare_needs_no_permission(node: Node, ann: Channel) -> None:
    # As on RabbitMQ 3.10.8: access to the vhost is enough.
    node.http.put(RIGHTS, {"configure": "", "write": "", "read": ""})
    assert ann.declare("q", passive=True).message_count == 1
    ann.declare_exchange("amq.topic", "topic", passive=True)
    with pytest.raises(ClosedError, match="404"):
        ann.declare("missing", passive=True)
