"""Every limit that a policy sets holds after a restart, for the messages that were there before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holtmq.config import Config
from holtmq.server.run import running
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import eventually


@contextmanager
def broker(tmp_path: Path) -> Iterator[Channel]:
    definitions = tmp_path / "definitions.json"
    config = Config(
        data=str(tmp_path / "b.db"), amqp_port=0, http_port=-1, definitions=str(definitions) if definitions.exists() else None
    )
    with running(config) as server, Amqp(int(server.address.rsplit(":", 1)[1])) as amqp:
        yield amqp.channel()


def set_policy(tmp_path: Path, definition: dict[str, Any]) -> None:
    policy = {"vhost": "/", "name": "limits", "pattern": "^q$", "apply-to": "queues", "priority": 0, "definition": definition}
    (tmp_path / "definitions.json").write_text(json.dumps({"policies": [policy]}))


def publish(channel: Channel, *bodies: bytes) -> list[str]:
    """Publish with confirms, and return the answers."""
    channel.confirm()
    answers = []
    for body in bodies:
        channel.publish("", "q", body, delivery_mode=2)
        answers.append(type(channel.next().method).__name__)
    return answers


def drops_the_oldest(channel: Channel) -> None:
    assert publish(channel, b"4444") == ["BasicAck"]
    assert channel.drain("q") == [b"2222", b"3333", b"4444"]


def rejects_the_newest(channel: Channel) -> None:
    assert publish(channel, b"4444") == ["BasicNack"]
    assert channel.drain("q") == [b"1111", b"2222", b"3333"]


def expires_messages(channel: Channel) -> None:
    eventually(lambda: channel.count("q") == 0, "all messages to expire")


def deletes_the_queue(channel: Channel) -> None:
    channel.declare("later", message_ttl=1500)  # a look at the queue itself would use it, and start its time again
    channel.put("later", b"m")
    eventually(lambda: channel.count("later") == 0, "a later time")
    with pytest.raises(ClosedError, match="404"):
        channel.count("q")


def dead_letters(channel: Channel) -> None:
    event = channel.get("q", no_ack=False)
    assert event is not None
    channel.reject(event.method.delivery_tag, requeue=False)
    channel.settle()
    assert channel.drain("dead") == [b"1111"]


def limits_deliveries(channel: Channel) -> None:
    for _ in range(2):
        event = channel.get("q", no_ack=False)
        assert event is not None
        assert event.body == b"1111"
        channel.reject(event.method.delivery_tag, requeue=True)
        channel.settle()
    event = channel.get("q", no_ack=False)
    assert event is not None
    assert event.body == b"2222"


LIMITS: list[tuple[dict[str, Any], Callable[[Channel], None]]] = [
    ({"max-length": 3}, drops_the_oldest),
    ({"max-length-bytes": 12}, drops_the_oldest),
    ({"max-length": 3, "overflow": "reject-publish"}, rejects_the_newest),
    ({"max-length-bytes": 12, "overflow": "reject-publish"}, rejects_the_newest),
    ({"expires": 1000}, deletes_the_queue),
    ({"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, dead_letters),
    ({"delivery-limit": 1}, limits_deliveries),
]
MESSAGE_TTL = ({"message-ttl": 500}, expires_messages)
"""It applies to messages that are published after it was set, as on RabbitMQ."""


def _name(value: object) -> str:
    return "-".join(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize(("definition", "holds"), [*LIMITS, MESSAGE_TTL], ids=_name)
def test_a_limit_by_policy_holds_after_a_restart(
    tmp_path: Path, definition: dict[str, Any], holds: Callable[[Channel], None]
) -> None:
    set_policy(tmp_path, definition)
    fill(tmp_path)
    (tmp_path / "definitions.json").unlink()
    with broker(tmp_path) as channel:
        holds(channel)


@pytest.mark.parametrize(("definition", "holds"), LIMITS, ids=_name)
def test_a_limit_by_a_later_policy_counts_the_messages_from_before_the_restart(
    tmp_path: Path, definition: dict[str, Any], holds: Callable[[Channel], None]
) -> None:
    fill(tmp_path)
    set_policy(tmp_path, definition)
    with broker(tmp_path) as channel:
        holds(channel)


def fill(tmp_path: Path) -> None:
    with broker(tmp_path) as channel:
        channel.declare("q", durable=True)
        channel.declare("dead", durable=True)
        publish(channel, b"1111", b"2222", b"3333")


def test_messages_over_a_limit_by_policy_are_dropped_when_the_broker_starts(tmp_path: Path) -> None:
    fill(tmp_path)
    set_policy(tmp_path, {"max-length-bytes": 8})
    with broker(tmp_path) as channel:
        assert channel.call(wire.QueueDeclare(0, "q", True), wire.QueueDeclareOk).message_count == 2
        assert channel.drain("q") == [b"2222", b"3333"]
