"""Queues over HTTP: their messages are fetched, moved and counted."""

from __future__ import annotations

from random import randbytes
from typing import Any

import pytest

from holtmq.broker.memory import ALIKE_BYTES, MESSAGE_BYTES
from holtmq.wire.content import encode_properties
from tests.deadline import eventually
from tests.management.conftest import Node
from tests.management.http import Http, assert_answer
from tests.management.test_metrics import samples


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PUT", "/api/queues/%2F/q", {"durable": "yes"}, 400, "body.durable: expected true or false, got string 'yes'"),
        ("PUT", "/api/queues/%2F/q", {"arguments": []}, 201, ""),
        ("PUT", "/api/queues/%2F/q", {"arguments": 3}, 400, "body.arguments: expected an object, got integer 3"),
        ("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": -1}}, 400, "x-max-length"),
        ("PUT", "/api/queues/%2F/q", b"{oops", 400, "body: expected JSON"),
        ("PUT", "/api/queues/%2F/q", [1], 400, "expected an object"),
        ("PUT", "/api/queues/%2F/amq.mine", {}, 401, "reserved prefix"),
        ("PUT", f"/api/queues/%2F/{'x' * 256}", {}, 400, "255"),
        ("PUT", "/api/queues/nowhere/q", {}, 404, "no vhost 'nowhere'"),
        ("GET", "/api/queues/%2F/none", None, 404, "no queue 'none' in vhost '/'"),
        ("DELETE", "/api/queues/%2F/none/contents", None, 404, "no queue 'none'"),
    ],
)
def test_invalid_queue_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_messages_are_moved_unchanged_and_in_order(node: Node) -> None:
    http = node.http
    for queue, arguments in (("from", {}), ("to", {"x-max-length": 7, "x-overflow": "reject-publish"}), ("large", {})):
        http.put(f"/api/queues/%2F/{queue}", {"arguments": arguments})
    http.post("/api/bindings/%2F/e/amq.topic/q/from", {"routing_key": "#"})
    with node.connect() as amqp:
        channel = amqp.channel()
        for number in range(10):
            channel.publish("amq.topic", f"k.{number}", b"%d" % number, headers={"n": number})
        channel.settle()
    assert http.post("/api/queues/%2F/from/move", {"destination": "to", "count": 3}).body == {"moved": 3}
    assert http.post("/api/queues/%2F/from/move", {"destination": "to"}).body == {"moved": 4}  # then it is full
    left = http.post("/api/queues/%2F/from/get", {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}).body
    assert [(each["payload"], each["redelivered"]) for each in left] == [("7", False), ("8", False), ("9", False)]
    assert http.post("/api/queues/%2F/to/move", {"destination": "large"}).body == {"moved": 7}
    moved = http.post("/api/queues/%2F/large/get", {"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto"}).body
    assert [each["routing_key"] for each in moved] == [f"k.{number}" for number in range(7)]
    assert [each["properties"]["headers"] for each in moved] == [{"n": number} for number in range(7)]
    assert {each["exchange"] for each in moved} == {"amq.topic"}
    assert http.post("/api/queues/%2F/from/move", {"destination": "from"}).status == 400
    assert http.post("/api/queues/%2F/from/move", {"destination": "none"}).status == 404


def test_properties_that_are_not_utf8_are_kept_by_dead_letters_and_shown_as_text(node: Node) -> None:
    raw = encode_properties({"message_id": "m\udcff", "headers": {"k": 1}})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    node.http.put("/api/queues/%2F/dead", {"arguments": {}})
    node.http.put("/api/queues/%2F/q", {"arguments": dead})
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.publish_raw("", "q", raw, b"m")
        channel.settle()
    (shown,) = node.http.post("/api/queues/%2F/q/get", {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}).body
    assert shown["properties"]["message_id"] == "m\ufffd"
    with node.connect() as amqp:
        letter = eventually(lambda: amqp.channel(2).get("dead"), "the dead letter")
    assert letter is not None
    assert letter.properties["message_id"] == "m\udcff"


def test_malformed_headers_do_not_stop_the_broker(node: Node) -> None:
    http = node.http
    http.put("/api/queues/%2F/dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.put("/api/queues/%2F/brief", {"arguments": {"x-message-ttl": 50, **letters}})
    node.put_unreadable("brief")
    http.get_until("/api/queues/%2F/dead", lambda queue: queue["messages"] == 1)
    (message,) = http.post("/api/queues/%2F/dead/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}).body
    assert message["properties"]["headers"]["x-first-death-reason"] == "expired"
    node.put_unreadable("dead")
    got = http.post("/api/queues/%2F/dead/get", {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"})
    assert [each["payload"] for each in got.body] == ["x", "x"]
    assert http.put("/api/queues/%2F/next") == 201


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_a_move_neither_loses_nor_duplicates_messages(node: Node, overflow: str) -> None:
    http = node.http
    for queue in ("from", "dead"):
        http.put(f"/api/queues/%2F/{queue}")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.put("/api/queues/%2F/to", {"arguments": {"x-max-length": 2, "x-overflow": overflow, **letters}})
    node.put_unreadable("from", 5)
    for _ in range(3):
        assert http.post("/api/queues/%2F/from/move", {"destination": "to"}).status == 200
    expected = {"drop-head": (0, 2, 3)}.get(overflow, (3, 2, 0))
    assert tuple(http.message_count(queue) for queue in ("from", "to", "dead")) == expected


def test_memory_is_counted_until_the_messages_are_gone(node: Node) -> None:
    http = node.http

    def messages_take() -> float:
        return sum(samples(node)["holtmq_memory_queues_bytes"].values())

    for queue in ("q", "r"):
        http.put(f"/api/queues/%2F/{queue}")
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.put("q", *[bytes(1000)] * 50)
        channel.settle()
    least, most = 1000 + ALIKE_BYTES, 1000 + MESSAGE_BYTES  # it depends on how many arrived together
    assert 50 * least <= messages_take() <= 50 * most
    http.post("/api/queues/%2F/q/move", {"destination": "r", "count": 20})
    assert 50 * least <= messages_take() <= 50 * most
    http.delete("/api/queues/%2F/r/contents")
    assert 30 * least <= messages_take() <= 30 * most
    http.delete("/api/queues/%2F/q")
    assert messages_take() == 0


def test_a_stream_shows_its_offsets_and_is_read_from_any_of_them(node: Node) -> None:
    http, stream = node.http, "/api/queues/%2F/s"
    http.put(stream, {"arguments": {"x-queue-type": "stream"}})
    shown = http.get(stream)
    assert (shown["type"], shown["first_offset"], shown["last_offset"], shown["segments"]) == ("stream", None, None, 0)
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.confirm()
        for number in range(5):
            channel.publish("", "s", b"%d" % number, headers={"n": number})
            channel.next()
        channel.qos(2)
        channel.consume("s", "c", arguments={"x-stream-offset": 1})
        channel.bodies(2)
        shown = http.get(stream)
        metrics = samples(node, "/metrics/per-object")
    assert (shown["messages_ready"], shown["first_offset"], shown["last_offset"]) == (5, 0, 4)
    assert 1 <= shown["segments"] <= 5
    (consumer,) = shown["consumer_details"]
    assert (consumer["offset"], consumer["lag"], consumer["arguments"]) == (3, 2, {"x-stream-offset": 1})
    labels = (("queue", "s"), ("vhost", "/"))
    for name, value in (("first_offset", 0), ("next_offset", 5), ("segments", shown["segments"])):
        assert metrics[f"holtmq_stream_{name}"][labels] == value
    for name, value in (("offset", 3), ("lag", 2)):
        assert [*metrics[f"holtmq_stream_consumer_{name}"].values()] == [value]
    assert [queue["last_offset"] for queue in http.get("/api/queues?columns=last_offset")] == [4]
    assert_answer(http.call("DELETE", f"{stream}/contents"), 400, "queue.purge is not supported by stream 's'")
    read = {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}
    for offset, expected in ((None, "01"), (3, "34"), ("last", "4"), ("1h", "01"), ("2001-01-01T00:00:00Z", "01"), (9, "")):
        found = http.post(f"{stream}/get", read if offset is None else {**read, "offset": offset}).body
        assert "".join(message["payload"] for message in found) == expected
    assert_answer(http.post(f"{stream}/get", {**read, "offset": "soon"}), 400, "x-stream-offset")
    (message,) = http.post(f"{stream}/get", {**read, "offset": "last"}).body
    assert (message["offset"], message["message_count"], message["properties"]) == (4, 0, {"headers": {"n": 4}})
    assert message["timestamp"] == shown["last_timestamp"]


def test_the_bytes_of_a_stream_are_those_in_the_file(node: Node) -> None:
    http, stream, labels = node.http, "/api/queues/%2F/s", (("queue", "s"), ("vhost", "/"))

    def messages_take() -> int:
        """Return the bytes of the stream, which API and metrics agree on."""
        shown: int = http.get(stream)["message_bytes"]
        assert http.get("/api/queues?columns=message_bytes") == [{"message_bytes": shown}]
        metrics = samples(node, "/metrics/per-object")
        assert metrics["holtmq_stream_bytes"][labels] == metrics["rabbitmq_queue_messages_ready_bytes"][labels] == shown
        return shown

    http.put(stream, {"arguments": {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 10_000}})
    assert messages_take() == 0
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.confirm()
        for _ in range(100):
            channel.publish("", "s", randbytes(1000))
            channel.next()
        everything = messages_take()
        assert 100_000 <= everything <= 125_000
        channel.qos(1)
        channel.consume("s", "c", arguments={"x-stream-offset": "first"})
        channel.bodies(1)
        assert messages_take() == everything
    http.put("/api/policies/%2F/short", {"pattern": "^s$", "definition": {"max-length-bytes": 30_000}, "apply-to": "queues"})
    eventually(lambda: http.get(stream)["message_bytes"] <= 30_000, "retention")
    left = http.get(stream)
    assert left["last_offset"] == 99
    assert 1000 * (100 - left["first_offset"]) <= messages_take() <= 30_000
