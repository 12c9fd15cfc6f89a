"""What a change of a user or its permissions means for the sessions that the user has open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holtmq.broker.reply import ReplyDestination
from holtmq.errors import ConnectionForcedError
from holtmq.steps import Steps

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.session import Session


def enforce_rights(broker: Broker, user_name: str) -> Steps[None]:
    """Apply the current rights of a user to its open sessions, one in each step.

    A session ends if the user was deleted, has lost access to the vhost, or has another password than the one it logged in
    with. In any other session, consumers of queues that the user can no longer read are cancelled. Cached rights to publish
    are checked again with the next message, because the vhost's generation has grown.
    """
    for session in list(broker.sessions.get(user_name, ())):
        if not session.is_closed:
            _enforce(session)
        yield


def _enforce(session: Session) -> None:
    reason = _revoked(session)
    if reason is None:
        session.user = session.broker.authorization.users[session.user.name]
        _cancel_unreadable(session)
    elif session.close_connection is not None:
        session.close_connection(ConnectionForcedError(reason))


def _revoked(session: Session) -> str | None:
    accounts, name = session.broker.authorization, session.user.name
    user = accounts.users.get(name)
    if user is None:
        return f"user {name!r} is deleted"  # as RabbitMQ says it
    if not accounts.may_enter(name, session.vhost.name):
        return f"user {name!r} has no permissions in vhost {session.vhost.name!r} any more"
    if session.uses_password and user.password_hash != session.user.password_hash:
        return f"the password of user {name!r} was changed"
    return None


def _cancel_unreadable(session: Session) -> None:
    accounts, user, vhost = session.broker.authorization, session.user.name, session.vhost.name
    for channel in session.channels.values():
        for tag, consumer in list(channel.consumers.items()):
            queue = consumer.queue
            if not isinstance(queue, ReplyDestination) and not accounts.permits(user, vhost, "read", queue.name):
                channel.cancel(tag)
                channel.outlet.cancel(consumer)
