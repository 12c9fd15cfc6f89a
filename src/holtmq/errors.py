"""What can go wrong, by consequence: the type of an error says what it costs, its text what was seen and what was expected.

An `AmqpError` carries the reply code of AMQP 0-9-1 (§1.2 of the specification, "Constants") and, where one method is to
blame whoever calls it, that method's class and method id; the edges (wire, HTTP, command line) translate from these alone.
"""

from __future__ import annotations

from typing import ClassVar

QUEUE_UNBIND = (50, 50)
EXCHANGE_UNBIND = (40, 40)


class HoltmqError(Exception):
    """Everything that HoltMQ raises on purpose."""


class AmqpError(HoltmqError):
    """An error that AMQP has a reply code for."""

    reply_code: ClassVar[int]
    class_id: int = 0
    method_id: int = 0


class AmqpChannelError(AmqpError):
    """Closes the channel; the connection lives on."""


class AccessRefusedError(AmqpChannelError):
    """The name is reserved, or the caller has no right to it."""

    reply_code = 403


class ResourceLockedError(AmqpChannelError):
    """The queue is exclusive to another connection."""

    reply_code = 405


class NotFoundError(AmqpChannelError):
    """The named exchange, queue or vhost does not exist."""

    reply_code = 404


class PreconditionFailedError(AmqpChannelError):
    """The request contradicts what exists, or an argument of it is not acceptable."""

    reply_code = 406


class BindingArgumentsMismatchError(PreconditionFailedError):
    """Source, destination and key are bound, but with other arguments than the unbind names."""

    def __init__(self, message: str, *, method: tuple[int, int]) -> None:
        super().__init__(message)
        self.class_id, self.method_id = method

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_mismatch, (str(self), self.class_id, self.method_id)


class InvalidValueError(PreconditionFailedError, ValueError):
    """A value that no AMQP field can hold, or not this one: a wrong type, too long, out of range."""


class DefinitionsError(InvalidValueError):
    """A definitions file that cannot be used; `path` leads to the offending value, and nothing of the file was taken."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return DefinitionsError, (self.path, self.problem)


class QueueFullError(PreconditionFailedError):
    """The queue holds as many ready messages as it may; nothing was added."""


class AmqpConnectionError(AmqpError):
    """Closes the connection and all its channels."""


class ConnectionForcedError(AmqpConnectionError):
    """An operator closes the connection, or the server stops."""

    reply_code = 320


class LoginRefusedError(AmqpConnectionError):
    """The user does not exist, the password is wrong, or the user may not come from there."""

    reply_code = 403


class FrameError(AmqpConnectionError):
    """Bytes that are no frame, or a frame that does not hold what it should."""

    reply_code = 501


class MalformedLoginError(AmqpConnectionError):
    """A login whose bytes are not what its mechanism says."""

    reply_code = 502


class CommandInvalidError(AmqpConnectionError):
    """A method that AMQP does not have, or that makes no sense in this state."""

    reply_code = 503


class ChannelNumberError(AmqpConnectionError):
    """A method on a channel that is not open, or a channel opened twice."""

    reply_code = 504


class UnexpectedFrameError(AmqpConnectionError):
    """A frame that is well formed, in a place where it cannot be."""

    reply_code = 505


class NotAllowedError(AmqpConnectionError):
    """Against the rules that were agreed on, or no right to the vhost."""

    reply_code = 530


class NotImplementedByBrokerError(AmqpConnectionError):
    """Part of AMQP, but neither HoltMQ nor RabbitMQ has it."""

    reply_code = 540


class InternalError(AmqpConnectionError):
    """A defect of ours: the log has all of it, the client only that it happened."""

    reply_code = 541


class LeaseLostError(HoltmqError):
    """The message is no longer ours to settle: its lease ran out and it went to another, or it is settled already."""


class StoreError(HoltmqError):
    """The file could not be used; what was in it before the call is in it still."""


class StoreBusyError(StoreError):
    """Another process kept the file locked for longer than the timeout."""


class StoreFullError(StoreError):
    """The disk is full; nothing of the call was written."""


class StoreReadOnlyError(StoreError):
    """The file, or the folder around it, cannot be written."""


class NotAStoreError(StoreError):
    """The file is no database, is damaged, or is some other program's database."""


class StoreVersionError(StoreError):
    """The file was written by a newer HoltMQ than this one."""


class StoreOwnedError(StoreError):
    """The file belongs to a running broker, or is open in the embedded library where a broker wants it."""


class StoreClosedError(StoreError):
    """The file was closed by its owner."""


def _rebuild_mismatch(message: str, class_id: int, method_id: int) -> BindingArgumentsMismatchError:
    return BindingArgumentsMismatchError(message, method=(class_id, method_id))
