"""Health checks. The status is 200 if the check passes and 503 with a reason if it fails."""

from __future__ import annotations

import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.responses import Response

from holtmq.errors import InvalidValueError
from holtmq.management.operations import OBJECT, Call, api
from holtmq.management.resources.overview import PROTOCOLS
from holtmq.wire.content import encode_properties, make_content

OK = {"status": "ok"}
ANSWERS = {200: OBJECT, 503: OBJECT}
UNITS_S = {"days": 86_400, "weeks": 604_800, "months": 2_592_000, "years": 31_536_000}
PROTOCOL_NAMES = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqp-0-9-1": "amqp"}
TEST_QUEUE = "aliveness-test"


@api.get("/api/aliveness-test/{vhost}", answers=ANSWERS)
def aliveness_test(call: Call) -> Any:
    """Declare a queue, publish a message to it, and get the message back."""
    vhost, body = call.vhost, b"test_message"
    raw = encode_properties({})
    with call.channel(vhost) as (channel, _):
        channel.declarer.declare_queue(TEST_QUEUE, is_durable=False, is_exclusive=False, is_auto_delete=False, arguments={})
        channel.publication("", TEST_QUEUE, is_mandatory=True).publish(raw, [make_content(raw, body)])
        fetched = channel.get(TEST_QUEUE, is_auto_ack=True)
    return OK if fetched is not None else _failed(f"a message to queue {TEST_QUEUE!r} did not arrive")


@api.get("/api/health/checks/alarms", answers=ANSWERS)
def alarms(call: Call) -> Any:
    """Fail if publishers are blocked."""
    return _alarms(call)


@api.get("/api/health/checks/active", answers=ANSWERS)
def active(_: Call) -> Any:
    """Pass on the active broker. A standby answers 503 and names the active one, also without a login."""
    return {**OK, "role": "active"}


@api.get("/api/health/checks/local-alarms", answers=ANSWERS)
def local_alarms(call: Call) -> Any:
    """Fail if publishers are blocked on this node."""
    return _alarms(call)


def _alarms(call: Call) -> Any:
    resource = call.node.blocked_for
    return OK if resource is None else _failed(f"publishers are blocked: {call.node.blocked_reason}", alarms=[resource])


@api.get("/api/health/checks/certificate-expiration/{within}/{unit}", answers=ANSWERS)
def certificate_expiration(call: Call) -> Any:
    """Fail if the TLS certificate expires within a period."""
    within, unit = call.path["within"], call.path["unit"]
    if unit not in UNITS_S or not (within.isascii() and within.isdigit() and len(within) < 8):
        raise InvalidValueError(f"expected an integer and one of {', '.join(UNITS_S)}, got {within[:20]!r} and {unit[:20]!r}")
    path = call.node.config.tls_certificate
    if path is None:
        return OK
    # The only way to read a certificate with the standard library alone.
    decoded: dict[str, Any] = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # noqa: SLF001
    ends_at = ssl.cert_time_to_seconds(decoded["notAfter"])
    if ends_at - time.time() > int(within) * UNITS_S[unit]:
        return OK
    return _failed(
        f"the certificate expires within {within} {unit}", expired=[{"cert_file": path, "ends": decoded["notAfter"]}]
    )


@api.get("/api/health/checks/port-listener/{port}", answers=ANSWERS)
def port_listener(call: Call) -> Any:
    """Fail if the broker does not listen on a port."""
    port = call.path["port"]
    if not (port.isascii() and port.isdigit() and len(port) < 6):
        raise InvalidValueError(f"expected a port number, got {port[:20]!r}")
    ports = [urlsplit(address).port for address in call.node.addresses]
    if int(port) in ports:
        return {**OK, "port": int(port)}
    return _failed("No active listener", missing=int(port), ports=ports)


@api.get("/api/health/checks/protocol-listener/{protocol}", answers=ANSWERS)
def protocol_listener(call: Call) -> Any:
    """Fail if there is no listener for a protocol (amqp091, amqp/ssl, http, https)."""
    asked = call.path["protocol"]
    protocols = [PROTOCOLS[urlsplit(address).scheme] for address in call.node.addresses]
    if PROTOCOL_NAMES.get(asked, asked) in protocols:
        return {**OK, "protocol": PROTOCOL_NAMES.get(asked, asked)}
    return _failed("No active listener", missing=asked, protocols=protocols)


@api.get("/api/health/checks/virtual-hosts", answers=ANSWERS)
def virtual_hosts(_: Call) -> Any:
    """Fail if a vhost is down. All vhosts run while the broker runs."""
    return OK


@api.get("/api/health/checks/node-is-quorum-critical", answers=ANSWERS)
def quorum_critical(_: Call) -> Any:
    """Fail if stopping this node would lose a quorum. Always passes: HoltMQ runs on one node."""
    return {**OK, "reason": "single node cluster"}


@api.get("/api/health/checks/node-is-mirror-sync-critical", answers=ANSWERS)
def mirror_sync_critical(_: Call) -> Any:
    """Fail if stopping this node would lose mirrors. Always passes: HoltMQ runs on one node."""
    return {**OK, "reason": "single node cluster"}


def _failed(reason: str, **details: Any) -> Response:
    content = orjson.dumps({"status": "failed", "reason": reason, **details})
    return Response(content, status_code=503, media_type="application/json")
