"""Authentication, TLS and permissions."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from holtmq.accounts import User
from holtmq.config import Config
from holtmq.errors import LoginRefusedError
from holtmq.server.login import Login
from holtmq.server.passwords import Passwords
from holtmq.server.run import running
from holtmq.testing import TestBroker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.broker.conftest import Bench
from tests.deadline import PATIENCE_S

DEFINITIONS = {
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "users": [
        {"name": "clerk", "password": "secret", "tags": ""},
        {"name": "moved", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []},
    ],
    "permissions": [
        {"user": "clerk", "vhost": "shop", "configure": "^clerk\\.", "write": "^(clerk\\.|orders$)", "read": "^clerk\\."}
    ],
    "topic_permissions": [
        {"user": "clerk", "vhost": "shop", "exchange": "orders", "write": "^{username}\\.", "read": "^public\\."}
    ],
    "exchanges": [{"name": "orders", "vhost": "shop", "type": "topic", "durable": True}],
    "queues": [{"name": "till", "vhost": "shop", "durable": True}],
    "bindings": [{"source": "orders", "vhost": "shop", "destination": "till", "destination_type": "queue", "routing_key": "#"}],
    "policies": [
        {"name": "short", "vhost": "shop", "pattern": "^till$", "apply-to": "queues", "definition": {"max-length": 2}}
    ],
}


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(DEFINITIONS))
    return path


@pytest.fixture
def broker_settings(definitions: Path) -> dict[str, Any]:
    return {"definitions": str(definitions)}


@pytest.fixture
def clerk(broker: TestBroker) -> Iterator[Channel]:
    with Amqp(broker.port, user="clerk", password="secret", vhost="shop") as amqp:
        yield amqp.channel()


def refused(action: object, *arguments: object) -> int:
    with pytest.raises(ClosedError) as closed:
        action(*arguments)  # type: ignore[operator]
    return closed.value.code


def test_a_user_needs_a_permission_in_the_vhost(broker: TestBroker) -> None:
    assert refused(lambda: Amqp(broker.port, user="clerk", password="secret", vhost="/")) == 530
    assert refused(lambda: Amqp(broker.port, user="clerk", password="secret", vhost="nowhere")) == 530


def test_a_user_without_a_password_hash_cannot_log_in(broker: TestBroker) -> None:
    assert refused(lambda: Amqp(broker.port, user="moved", password="", vhost="shop")) == 403


def test_configure_is_needed_to_declare_and_delete(clerk: Channel) -> None:
    clerk.declare("clerk.inbox")
    assert refused(clerk.declare, "other") == 403
    clerk = clerk.reopen()
    assert refused(clerk.delete, "till") == 403


def test_write_is_needed_to_publish_and_to_bind_to(clerk: Channel) -> None:
    clerk.publish("orders", "clerk.1")
    clerk.settle()
    clerk.publish("", "till")
    assert refused(clerk.settle) == 403


def test_read_is_needed_to_consume_get_and_purge(clerk: Channel) -> None:
    assert refused(clerk.get, "till") == 403
    clerk = clerk.reopen()
    assert refused(clerk.consume, "till") == 403
    clerk = clerk.reopen()
    assert refused(lambda: clerk.call(wire.QueuePurge(0, "till"), wire.QueuePurgeOk)) == 403


def test_topic_permissions_check_the_routing_key(clerk: Channel) -> None:
    clerk.publish("orders", "clerk.42")
    clerk.settle()
    clerk.publish("orders", "manager.42")
    assert refused(clerk.settle) == 403


def test_a_policy_applies_to_queues_by_pattern(broker: TestBroker, clerk: Channel) -> None:
    for number in range(5):
        clerk.publish("orders", f"clerk.{number}")
    clerk.settle()
    assert clerk.declare("till", passive=True).message_count == 2


def test_a_password_is_stored_as_a_salted_hash() -> None:
    user = User("a").with_password("secret")
    assert "secret" not in user.password_hash
    assert user.has_password("secret")
    assert not user.has_password("Secret")
    assert User("b").with_password("secret").password_hash != user.password_hash
    assert user.with_password("secret") is user


def test_a_password_hash_of_rabbitmq_is_accepted() -> None:
    # `rabbitmqctl hash_password test12` on RabbitMQ gives such a value: a salt of 4 bytes, then SHA-256 of salt and password.
    user = User("a", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "rabbit_password_hashing_sha256")
    assert user.has_password("test12")
    assert not user.has_password("test13")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificates(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    ca.write_bytes(authority.cert_pem.bytes())
    return {"tls_certificate": str(certificate), "tls_key": str(key), "ca": str(ca)}


def tls_port(path: Path, **settings: object) -> Iterator[int]:
    config = Config(data=":memory:", amqp_port=0, tls_port=0, http_port=-1, **settings)  # type: ignore[arg-type]
    with running(config) as server:
        yield int(server.addresses[1].rsplit(":", 1)[1])


def test_tls_with_the_password_inside(certificates: dict[str, str], tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=certificates.pop("ca"))
    for port in tls_port(tmp_path, **certificates):
        wrap = lambda socket: context.wrap_socket(socket, server_hostname="localhost")  # noqa: E731
        with Amqp(port, wrap=wrap) as amqp:
            channel = amqp.channel()
            channel.declare("q")
            channel.put("q", b"x" * 300_000)
            assert channel.drain("q") == [b"x" * 300_000]


def test_many_large_messages_are_encrypted(certificates: dict[str, str], tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=certificates.pop("ca"))
    for port in tls_port(tmp_path, **certificates):
        wrap = lambda socket: context.wrap_socket(socket, server_hostname="localhost")  # noqa: E731
        with Amqp(port, wrap=wrap) as amqp:
            channel = amqp.channel()
            channel.declare("q")
            channel.put("q", *[b"%d" % number + bytes(60_000) for number in range(50)])
            channel.consume("q", no_ack=True)
            assert channel.bodies(50) == [b"%d" % number + bytes(60_000) for number in range(50)]


def test_mutual_tls_and_login_by_certificate(certificates: dict[str, str], authority: trustme.CA, tmp_path: Path) -> None:
    ca = certificates.pop("ca")
    context = ssl.create_default_context(cafile=ca)
    for port in tls_port(tmp_path, **certificates, tls_client_ca=ca):
        wrap = lambda socket: context.wrap_socket(socket, server_hostname="localhost")  # noqa: E731
        with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            Amqp(port, wrap=wrap)
        authority.issue_cert("guest", common_name="guest").configure_cert(context)
        with Amqp(port, wrap=wrap, mechanism="EXTERNAL", response=b"") as amqp:
            assert b"EXTERNAL" in amqp.start.mechanisms
            amqp.channel().declare("q")


@pytest.mark.parametrize(
    ("peer", "settings", "is_refused"),
    [
        ("127.0.0.1", {}, False),
        ("127.9.9.9", {}, False),
        ("::1", {}, False),
        ("10.0.0.7", {}, True),
        ("fe80::1%eth0", {}, True),
        ("10.0.0.7", {"guest_from_anywhere": True}, False),
    ],
)
def test_guest_logs_in_from_this_machine_only(peer: str, settings: dict[str, bool], is_refused: bool) -> None:  # noqa: FBT001
    accounts = Bench().broker.authorization
    passwords = Passwords(accounts.users, timeout_s=PATIENCE_S)
    allowed = {"guest_from_anywhere": False, **settings}
    login = Login(accounts, passwords, host=peer, certified_name=None, **allowed)
    if is_refused:
        with pytest.raises(LoginRefusedError, match="guest"):
            asyncio.run(login.log_in("PLAIN", b"\0guest\0guest"))
    else:
        assert asyncio.run(login.log_in("PLAIN", b"\0guest\0guest")).name == "guest"
    passwords.close()
