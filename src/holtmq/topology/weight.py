"""The weight of a binding of an x-consistent-hash exchange, which is its routing key."""

from __future__ import annotations

import re

from holtmq.errors import InvalidValueError

CONSISTENT_HASH = "x-consistent-hash"
HIGHEST_WEIGHT = 2**32 - 1
_DIGITS = re.compile(r"\+?0*([0-9]{1,10})")


def weight_of(routing_key: str) -> int:
    """Return the weight that a routing key states; raise InvalidValueError if it states none."""
    found = _DIGITS.fullmatch(routing_key)
    weight = int(found[1]) if found else 0
    if not 1 <= weight <= HIGHEST_WEIGHT:
        raise InvalidValueError(
            f"the routing key of a binding of an {CONSISTENT_HASH} exchange is its weight and must be an integer from 1 to "
            f"{HIGHEST_WEIGHT}, got {routing_key[:40]!r}"
        )
    return weight
