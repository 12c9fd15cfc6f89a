"""The queues that a source reads: those that the options name, or those whose names match a pattern. Runs on the driver.

AMQP cannot list queues. The names for a pattern therefore come from the management API, which HoltMQ and RabbitMQ share.
"""

from __future__ import annotations

import base64
import json
import re
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPSHandler, Request, build_opener

from holtmq.client.address import Address
from holtmq.client.blocking_connection import BlockingConnection, ConnectionLostError
from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.spark.amqp.amqp_options import BrokerOptions, QueueOptions
from holtmq.wire import methods as wire

MANAGEMENT_PORT, MANAGEMENT_TLS_PORT = 15672, 15671
TIMEOUT_S = 30.0


class QueueListError(HoltmqError):
    """The management API refused to list the queues."""


class Subscription:
    """Finds the queues, and says how many messages are ready in them."""

    def __init__(self, broker: BrokerOptions, options: QueueOptions) -> None:
        self._broker = broker
        self._options = options

    def connect(self) -> BlockingConnection:
        """Open a connection to the broker."""
        return self._broker.connect("holtmq.spark")

    @property
    def is_pattern(self) -> bool:
        """Whether queues can be added and deleted while a stream runs."""
        return self._options.queue_pattern is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of the queues now. Raise ConnectionLostError if the management API cannot be reached."""
        pattern = self._options.queue_pattern
        if pattern is None:
            return self._options.named()
        return tuple(sorted(name for name in self._all_names() if re.fullmatch(pattern, name)))

    def required_names(self) -> tuple[str, ...]:
        """Return the names of the queues now. Raise InvalidValueError if no queue matches the pattern."""
        names = self.names()
        if not names:
            raise InvalidValueError(
                f"no queue matches queuePattern {self._options.queue_pattern!r} in vhost {self._broker.address().vhost!r}: "
                "declare the queues first, or change the pattern"
            )
        return names

    def __str__(self) -> str:
        return str(self._options)

    def _all_names(self) -> list[str]:
        address = self._broker.address()
        url = self._options.management_url or _management_url(address)
        login = base64.b64encode(f"{address.user}:{address.password}".encode()).decode()
        request = Request(
            f"{url.rstrip('/')}/api/queues/{quote(address.vhost, safe='')}", headers={"Authorization": f"Basic {login}"}
        )
        opener = build_opener(HTTPSHandler(context=self._broker.tls().context()))
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return [queue["name"] for queue in json.load(answer)]
        except HTTPError as error:
            raise QueueListError(
                f"queuePattern needs a list of the queues, and {url} refused it with status {error.code}: expected a user with "
                "the tag management or monitoring"
            ) from error
        except (OSError, ValueError) as error:
            raise ConnectionLostError(
                f"queuePattern needs a list of the queues, and {url} does not answer with one: {error}. "
                "Set managementUrl to the address of the management API"
            ) from error


def _management_url(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{MANAGEMENT_PORT}" if address.tls is None else f"https://{host}:{MANAGEMENT_TLS_PORT}"


def ready_messages(connection: BlockingConnection, queue: str) -> int:
    """Return the number of ready messages in a queue. Raise RefusedError if the queue does not exist."""
    return connection.call(wire.QueueDeclare(0, queue, passive=True), wire.QueueDeclareOk).message_count
