"""The errors that HoltMQ raises. The type of an error says what it closes; its text says what was found and expected.

An `AmqpError` carries the reply code of AMQP 0-9-1 (§1.2 of the specification, "Constants") and, where only one method can
cause it, the class and method id of that method. The edges (AMQP, HTTP, command line) translate errors by these alone.
"""

from __future__ import annotations

from typing import ClassVar

QUEUE_UNBIND = (50, 50)
EXCHANGE_UNBIND = (40, 40)


class HoltmqError(Exception):
    """Base class of all errors that HoltMQ raises."""


class AmqpError(HoltmqError):
    """Base class of the errors that have an AMQP reply code."""

    reply_code: ClassVar[int]
    class_id: int = 0
    method_id: int = 0


class AmqpChannelError(AmqpError):
    """An error that closes the channel; the connection stays open."""


class AccessRefusedError(AmqpChannelError):
    """The name is reserved, or the user lacks the permission."""

    reply_code = 403


class ResourceLockedError(AmqpChannelError):
    """The queue is exclusive to another connection."""

    reply_code = 405


class NotFoundError(AmqpChannelError):
    """The named exchange, queue or vhost does not exist."""

    reply_code = 404


class PreconditionFailedError(AmqpChannelError):
    """The request conflicts with what exists, or one of its arguments is invalid."""

    reply_code = 406


class BindingArgumentsMismatchError(PreconditionFailedError):
    """The binding to remove exists only with other arguments; nothing was removed."""

    def __init__(self, message: str, *, method: tuple[int, int]) -> None:
        super().__init__(message)
        self.class_id, self.method_id = method

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_mismatch, (str(self), self.class_id, self.method_id)


class InvalidValueError(PreconditionFailedError, ValueError):
    """The value has the wrong type, is too long, or is out of range."""


class DefinitionsError(InvalidValueError):
    """The definitions file is invalid and was not imported; `path` locates the offending value."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return DefinitionsError, (self.path, self.problem)


class QueueFullError(PreconditionFailedError):
    """The queue is at its maximum length and rejects new messages; nothing was added."""


class AmqpConnectionError(AmqpError):
    """An error that closes the connection and all its channels."""


class ConnectionForcedError(AmqpConnectionError):
    """An operator closed the connection, or the broker is shutting down."""

    reply_code = 320


class LoginRefusedError(AmqpConnectionError):
    """The user does not exist, the password is wrong, or the user may not connect from this address."""

    reply_code = 403


class FrameError(AmqpConnectionError):
    """The bytes are not a valid frame, or the payload of a frame cannot be decoded."""

    reply_code = 501


class MalformedLoginError(AmqpConnectionError):
    """The SASL response is malformed."""

    reply_code = 502


class CommandInvalidError(AmqpConnectionError):
    """The method is unknown, or is not valid in this state of the connection."""

    reply_code = 503


class ChannelNumberError(AmqpConnectionError):
    """The channel is not open, or is already open."""

    reply_code = 504


class UnexpectedFrameError(AmqpConnectionError):
    """A well-formed frame arrived out of order."""

    reply_code = 505


class ResourceError(AmqpConnectionError):
    """The broker lacks the memory for what the client requests or holds."""

    reply_code = 506


class NotAllowedError(AmqpConnectionError):
    """The request violates a negotiated limit, or the user has no access to the vhost."""

    reply_code = 530


class NotImplementedByBrokerError(AmqpConnectionError):
    """The feature is part of AMQP, but neither HoltMQ nor RabbitMQ implements it."""

    reply_code = 540


class InternalError(AmqpConnectionError):
    """A bug in HoltMQ: the log has the details, the client only learns that it happened."""

    reply_code = 541


class LeaseLostError(HoltmqError):
    """The message can no longer be settled: its lease has expired, or it was settled before."""


class PositionLostError(HoltmqError):
    """The position of a follower is not where it should be: retention removed its messages, or another follower moved it."""


class StoreError(HoltmqError):
    """The file could not be used; its contents are unchanged."""


class StoreBusyError(StoreError):
    """Another process held the lock on the file for longer than the timeout."""


class StoreFullError(StoreError):
    """The disk is full; nothing was written."""


class StoreReadOnlyError(StoreError):
    """The file or its directory is read-only."""


class NotAStoreError(StoreError):
    """The file is not a HoltMQ database, or is damaged."""


class StoreVersionError(StoreError):
    """The file was written by a newer version of HoltMQ."""


class StoreOwnedError(StoreError):
    """The file is in use by a broker or a copy, or one of them cannot start because the embedded library has it open."""

    def __init__(self, message: str, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner
        """The address of the broker, or the name of the copy. None if it is neither."""


class StoreReplacedError(StoreError):
    """The file was deleted, moved or replaced while it was open; nothing was written."""


class StoreFencedError(StoreError):
    """The broker no longer owns its database: another one does, or did meanwhile. It must not confirm anything more."""


class StoreLostError(StoreError):
    """The database cannot be reached; nothing was changed."""


class StoreRefusedError(StoreError):
    """The database refused the user: a wrong password, no such database, or missing rights."""


class StoreUnknownError(StoreError):
    """The connection to the database was lost before it answered: the change was made, or it was not."""


class StoreDefectError(StoreError):
    """A change could not be written because of an internal error. It is kept, and written again."""


class StoreClosedError(StoreError):
    """The file has been closed."""


def _rebuild_mismatch(message: str, class_id: int, method_id: int) -> BindingArgumentsMismatchError:
    return BindingArgumentsMismatchError(message, method=(class_id, method_id))
