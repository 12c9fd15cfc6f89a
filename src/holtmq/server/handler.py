"""Where protocol meets broker: carries out the requests of one client through the broker's session of that client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from holtmq.accounts import User
from holtmq.broker.channel import Channel
from holtmq.broker.publication import Publication
from holtmq.broker.session import Session
from holtmq.errors import AmqpError, LoginRefusedError, NotAllowedError, NotImplementedByBrokerError
from holtmq.protocol.server_channel import ServerChannel
from holtmq.server.dispatch import carry_out, depends_on_disk, get_message
from holtmq.server.login import EXTERNAL, Login
from holtmq.server.pause import Pause
from holtmq.steps import Steps
from holtmq.table import FieldValue
from holtmq.wire.frames import BASIC
from holtmq.wire.methods import BasicGet, BasicPublish, Method, TxCommit

if TYPE_CHECKING:
    from holtmq.server.client import Client
    from holtmq.server.server import Server

log = logging.getLogger(__name__)


class ClientHandler:
    """The `ConnectionHandler` of one client: its login, its session, and the state that other parts of the server ask for."""

    def __init__(self, server: Server, client: Client, login: Login) -> None:
        self.session: Session | None = None
        self.mechanism = ""
        self.heartbeat_s = 0
        self.is_publisher = False
        self.needs_batch = 0
        """The batch of the journal that must be on disk before the output may be sent."""
        self._needed_marks = 0
        self._server = server
        self._client = client
        self._login = login
        self._user: User | None = None
        self._login_task: asyncio.Task[None] | None = None

    @property
    def server_properties(self) -> Mapping[str, FieldValue]:
        return self._server.properties

    @property
    def mechanisms(self) -> str:
        return self._login.mechanisms

    @property
    def only_publishes(self) -> bool:
        """Whether the client publishes and neither consumes nor holds unacknowledged messages."""
        channels = self.session.channels.values() if self.session is not None else ()
        return self.is_publisher and not any(channel.consumers or channel.unsettled for channel in channels)

    @property
    def needs_marks(self) -> int:
        """The batch of the journal whose marks of deliveries must be on disk before the output may be sent."""
        return self.session.needs_marks if self.session is not None else self._needed_marks

    def has_output(self) -> None:
        self._server.turns.flush_later(self._client)

    def log_in(self, mechanism: str, response: bytes, client_properties: Mapping[str, FieldValue]) -> bool:
        self.mechanism = mechanism
        self._client.logged_in(client_properties)
        self._user = self._login.recall(mechanism, response)
        if self._user is None:
            self._client.pause_reading(Pause.LOGIN)
            self._login_task = asyncio.get_running_loop().create_task(self._check_login(mechanism, response))
        return self._user is not None

    async def _check_login(self, mechanism: str, response: bytes) -> None:
        refusal: LoginRefusedError | None = None
        try:
            self._user = await self._login.log_in(mechanism, response)
        except LoginRefusedError as error:
            refusal = error
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._server.broker.internal_errors.report("checking a login", self._client.name)
            refusal = LoginRefusedError("Login was refused: it could not be checked; see the log of the broker")
        self._login_task = None
        self._client.finish_login(refusal)

    def tuned(self, heartbeat_s: int) -> None:
        self.heartbeat_s = heartbeat_s
        if heartbeat_s:
            self._client.start_heartbeat(heartbeat_s)

    def enter(self, vhost: str) -> None:
        assert self._user is not None
        uses_password, broker = self.mechanism != EXTERNAL, self._server.broker
        user = broker.authorization.users.get(self._user.name)
        if user is None or (uses_password and user.password_hash != self._user.password_hash):
            raise NotAllowedError(f"user {self._user.name!r} has changed since the login: log in again")
        self.session = broker.open_session(user, vhost)
        self.session.uses_password, self.session.close_connection = uses_password, self._client.close
        self.session.wait_for = self._client.wait_for
        log.info("%s: user %r entered vhost %r", self._client.name, self._user.name, vhost)

    def update_secret(self, secret: bytes) -> None:
        """Accept a new secret. Passwords do not expire, so there is nothing to renew."""

    def close_session(self) -> Steps[None]:
        """End the session, if there is one. Can be repeated."""
        if self._login_task is not None:
            self._login_task.cancel()
            self._login_task = None
        if self.session is not None:
            yield from self.session.close()
            self._needed_marks = self.session.needs_marks
            self.session = None

    def open_channel(self, channel: ServerChannel) -> Channel:
        assert self.session is not None
        return self.session.open_channel(channel.number, channel)

    def close_channel(self, channel: ServerChannel) -> None:
        if self.session is not None:
            chore = self.session.close_channel(channel.number)
            if chore is not None:
                self._client.close_after(chore)

    def publication(self, channel: ServerChannel, method: BasicPublish) -> Publication:
        if method.immediate:
            raise NotImplementedByBrokerError("immediate=true")
        if not self.is_publisher:
            self.is_publisher = True
            self._server.pressure.admit_publisher(self._client)
        target = self._target(channel)
        return target.publication(method.exchange, method.routing_key, is_mandatory=method.mandatory)

    def carry_out(self, channel: ServerChannel, method: Method) -> None:
        target = self._target(channel)
        if isinstance(method, BasicGet):
            self._get(channel, target, method)
            return
        journal = self._server.broker.journal
        changes, is_commit = journal.change_count, isinstance(method, TxCommit) and target.has_uncommitted
        answer = carry_out(target, method)
        is_change = is_commit or journal.change_count > changes
        if target.chore is None:
            self._answer(channel, target, method, answer, is_change=is_change)
        else:
            target.chore.then(partial(self._answer_late, channel, target, method, answer, is_change=is_change))

    def _get(self, channel: ServerChannel, target: Channel, method: BasicGet) -> None:
        answer = get_message(target, method)
        if answer is None:
            target.when_read(method.queue, partial(self._get_late, channel, target, method))
            return
        reply, content = answer
        if content is None:
            channel.send(reply)
        else:
            channel.send_content(reply, content)

    def _get_late(self, channel: ServerChannel, target: Channel, method: BasicGet) -> None:
        """Answer basic.get when the next message may have been read."""
        try:
            self._get(channel, target, method)
        except AmqpError as error:
            channel.connection.refuse(error, channel.number, method)

    def _answer_late(
        self, channel: ServerChannel, target: Channel, method: Method, answer: Method | None, *, is_change: bool
    ) -> None:
        """Answer a method that took long, unless its channel is closed."""
        if target.outlet is not channel:
            return
        try:
            if isinstance(method, TxCommit):
                target.require_committed()
            self._answer(channel, target, method, answer, is_change=is_change)
        except AmqpError as error:
            channel.connection.refuse(error, channel.number, method)

    def _answer(
        self, channel: ServerChannel, target: Channel, method: Method, answer: Method | None, *, is_change: bool
    ) -> None:
        if method.class_id != BASIC:
            self._wait_for_disk(target, method, is_change=is_change)
        if answer is not None:
            channel.send(answer)

    def _target(self, channel: ServerChannel) -> Channel:
        assert self.session is not None
        return self.session.channels[channel.number]

    def _wait_for_disk(self, target: Channel, method: Method, *, is_change: bool) -> None:
        """Send the reply to a durable change only when the change is on disk."""
        journal = self._server.broker.journal
        if is_change and journal.has_changes:
            self.needs_batch = journal.batch
        elif depends_on_disk(target, method):
            self.needs_batch = max(self.needs_batch, journal.declared_batch)
