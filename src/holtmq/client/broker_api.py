"""The HTTP API of the broker that a job uses, as the broker names it when a client connects.

Only HoltMQ does, in the server property `http_api`. A job guesses no address: what answers there may belong to somebody else,
and would get the password.
"""

from __future__ import annotations

from collections.abc import Mapping

from holtmq.client.address import Address
from holtmq.client.blocking_connection import BlockingConnection
from holtmq.client.http_api import HttpApi

PROPERTY = "http_api"
TIMEOUT_S = 5.0


def find_api(address: Address) -> HttpApi | None:
    """Return the HTTP API of the broker at an address, or None if the broker names none to which the password may be sent.

    The password is sent to the broker's host only, past any proxy, and over TLS if AMQP uses TLS. Before that, what listens at
    the port must prove to be this broker: a port that is forwarded may lead elsewhere.
    """
    with BlockingConnection(address, name="holtmq announcement") as connection:
        told = connection.server_properties.get(PROPERTY)
    if not isinstance(told, Mapping):
        return None
    scheme = "http" if address.tls is None else "https"
    port, instance = told.get(scheme), told.get("instance")
    if not isinstance(port, int) or not isinstance(instance, str):
        return None
    host = f"[{address.host}]" if ":" in address.host else address.host
    tls = address.tls.context() if address.tls is not None else None
    api = HttpApi(f"{scheme}://{host}:{port}", address.user, address.password, tls, timeout_s=TIMEOUT_S, uses_proxy=False)
    return api if api.instance() == instance else None
