"""The terms of a message in one queue: its priority there, and when it expires."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holtmq.errors import PreconditionFailedError
from holtmq.queueing.argument_values import LONGEST_MS
from holtmq.queueing.rules import QueueRules
from holtmq.routing.route import Entry

EXPIRATIONS_KEPT = 1000


class Terms(NamedTuple):
    """Priority and expiry of a message in a queue."""

    expires_at: int | None
    priority: int


PLAIN_TERMS = Terms(None, 0)


def terms_of(rules: QueueRules, priority: int | None, ttl_ms: int | None, entry: Entry | None, now_ms: int) -> Terms:
    """Return the terms of a message that enters a queue.

    The message's own priority and TTL take precedence over those of the binding (`entry`). The queue's TTL and highest
    priority are upper limits.
    """
    if entry is not None:
        priority = entry.priority if priority is None else priority
        ttl_ms = entry.ttl_ms if ttl_ms is None else ttl_ms
    if rules.message_ttl_ms is not None:
        ttl_ms = rules.message_ttl_ms if ttl_ms is None else min(ttl_ms, rules.message_ttl_ms)
    expires_at = None if ttl_ms is None else now_ms + ttl_ms
    return Terms(expires_at, min(priority or 0, rules.max_priority))


def is_expired(expires_at: int | None, now_ms: int) -> bool:
    """Return whether a message has expired. At exactly its TTL it has not: a TTL of 0 allows immediate delivery."""
    return expires_at is not None and expires_at < now_ms


@lru_cache(EXPIRATIONS_KEPT)
def parse_expiration(text: str | None) -> int | None:
    """Return the TTL in a message's `expiration` property, which AMQP carries as a string of milliseconds."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) > LONGEST_MS:
        raise PreconditionFailedError(
            f"invalid expiration {text[:40]!r}: expected a number of milliseconds from 0 to {LONGEST_MS}"
        )
    return int(text)
