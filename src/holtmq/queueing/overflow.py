"""The length limits of a queue, in ready messages and in bytes of their bodies."""

from __future__ import annotations

from holtmq.queueing.rules import QueueRules


def is_full(rules: QueueRules, count: int, size: int, message_size: int) -> bool:
    """Return whether a queue with `count` ready messages of `size` bytes has no room for another message."""
    return (rules.max_length is not None and count >= rules.max_length) or (
        rules.max_length_bytes is not None and size + message_size > rules.max_length_bytes
    )


def is_too_long(rules: QueueRules, count: int, size: int) -> bool:
    """Return whether a queue exceeds a limit, so that messages must be dropped from its head."""
    return (rules.max_length is not None and count > rules.max_length) or (
        rules.max_length_bytes is not None and size > rules.max_length_bytes
    )
