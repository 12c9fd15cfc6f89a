"""Dead letters: why a message becomes one, where it goes, and its headers."""

from __future__ import annotations

from typing import Any

from tests.amqp_client import Channel, Event
from tests.conformance.behaviour.rule import Scene, rule
from tests.deadline import eventually, last_seen

SECTION = "Dead letters"


def _dead_letter(channel: Channel, queue: str) -> Event:
    event = eventually(lambda: channel.get(queue), "a dead letter")
    assert event is not None
    return event


def _death(event: Event) -> dict[str, Any]:
    death = dict(event.properties["headers"]["x-death"][0])
    death.pop("time")
    return death


@rule(
    SECTION,
    "a rejected message goes to the dead-letter exchange with its own routing key",
    (b"m", "work", "rejected", 1, ["work"]),
)
def rejected(scene: Scene) -> object:
    channel, exchange, dead = scene.channel(), scene.exchange(), scene.queue()
    channel.declare_exchange(exchange, "direct")
    channel.declare(dead)
    channel.bind(dead, exchange, "work")
    channel.declare("work", auto_delete=False, exclusive=True, dead_letter_exchange=exchange)
    channel.put("work", b"m")
    channel.get("work", no_ack=False)
    channel.reject(1, requeue=False)
    event = _dead_letter(channel, dead)
    death = _death(event)
    return event.body, event.method.routing_key, death["reason"], death["count"], death["routing-keys"]


@rule(SECTION, "x-dead-letter-routing-key replaces the routing key of the dead letter", "graveyard")
def routing_key(scene: Scene) -> object:
    channel, queue, exchange, dead = scene.channel(), scene.queue(), scene.exchange(), scene.queue()
    channel.declare_exchange(exchange, "fanout")
    channel.declare(dead)
    channel.bind(dead, exchange)
    channel.declare(queue, dead_letter_exchange=exchange, dead_letter_routing_key="graveyard")
    channel.put(queue, b"m")
    channel.get(queue, no_ack=False)
    channel.nack(1, requeue=False)
    return _dead_letter(channel, dead).method.routing_key


def _with_dead_letters(scene: Scene, **arguments: Any) -> tuple[Channel, str, str]:
    channel, queue, dead = scene.channel(), scene.queue(), scene.queue()
    channel.declare(dead)
    channel.declare(queue, dead_letter_exchange="", dead_letter_routing_key=dead, **arguments)
    return channel, queue, dead


@rule(SECTION, "an expired message becomes a dead letter, and its expiration moves into x-death", ("expired", "30", False))
def expired(scene: Scene) -> object:
    channel, queue, dead = _with_dead_letters(scene)
    channel.put(queue, b"m", expiration="30")
    event = _dead_letter(channel, dead)
    death = _death(event)
    return death["reason"], death.get("original-expiration"), "expiration" in event.properties


@rule(SECTION, "a message dropped by max-length becomes a dead letter", ("maxlen", b"1"))
def too_long(scene: Scene) -> object:
    channel, queue, dead = _with_dead_letters(scene, max_length=1)
    channel.put(queue, b"1", b"2")
    event = _dead_letter(channel, dead)
    return _death(event)["reason"], event.body


@rule(
    SECTION,
    "x-first-death headers describe the first death, and x-death counts by queue and reason",
    (True, "rejected", [2, 1]),
)
def counted(scene: Scene) -> object:
    channel, queue, dead = _with_dead_letters(scene)
    channel.put(queue, b"m")
    tag = 0

    def kill() -> Event:
        nonlocal tag
        last_seen(lambda: channel.count(queue), 1)
        event = channel.get(queue, no_ack=False)
        assert event is not None
        channel.reject(event.method.delivery_tag, requeue=False)
        return _dead_letter(channel, dead)

    first = kill()
    channel.put(queue, b"m", headers=first.properties["headers"])
    second = kill()
    channel.publish("", queue, b"m", headers=second.properties["headers"], expiration="1")
    third = _dead_letter(channel, dead)
    headers = third.properties["headers"]
    counts = {death["reason"]: death["count"] for death in headers["x-death"]}
    return headers["x-first-death-queue"] == queue, headers["x-first-death-reason"], [counts["rejected"], counts["expired"]]


@rule(SECTION, "a message that expires in a cycle of queues is dropped from the cycle", (b"m", 0))
def circle(scene: Scene) -> object:
    channel, queue, exchange, witness = scene.channel(), scene.queue(), scene.exchange(), scene.queue()
    channel.declare_exchange(exchange, "fanout")
    channel.declare(queue, dead_letter_exchange=exchange)
    channel.declare(witness)
    channel.bind(queue, exchange)
    channel.bind(witness, exchange)
    channel.put(queue, b"m", expiration="20")
    return _dead_letter(channel, witness).body, channel.count(queue)


@rule(SECTION, "a rejected message may return to its queue as a dead letter", b"m")
def rejected_circle(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, dead_letter_exchange="", dead_letter_routing_key=queue)
    channel.put(queue, b"m")
    channel.get(queue, no_ack=False)
    channel.reject(1, requeue=False)
    return _dead_letter(channel, queue).body


@rule(SECTION, "a dead letter is lost if its exchange does not exist", 0)
def missing_exchange(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, dead_letter_exchange="no-such-exchange")
    channel.put(queue, b"m")
    channel.get(queue, no_ack=False)
    channel.reject(1, requeue=False)
    channel.close()
    return scene.channel().count(queue)


@rule(SECTION, "a dead letter keeps its other headers and properties", ("v", "text/plain", "id"))
def properties_kept(scene: Scene) -> object:
    channel, queue, dead = _with_dead_letters(scene)
    channel.put(queue, b"m", headers={"k": "v"}, content_type="text/plain", message_id="id")
    channel.get(queue, no_ack=False)
    channel.reject(1, requeue=False)
    properties = _dead_letter(channel, dead).properties
    return properties["headers"]["k"], properties["content_type"], properties["message_id"]
