"""How a stream tells a consumer that a message is damaged: an empty message in its place, if the consumer asks for that.

It has the offset of the damaged message, the header `x-stream-damaged`, which says what is wrong, and `redelivered` set. No
message of a stream is redelivered, so that no publisher can forge a report.
"""

from __future__ import annotations

from collections.abc import Mapping

from holtmq.queueing.argument_values import flag
from holtmq.queueing.offset_header import offset_header
from holtmq.table import FieldValue
from holtmq.wire.content import Content, encode_properties

REPORT_ARGUMENT = "x-stream-report-damage"
DAMAGE_HEADER = "x-stream-damaged"


def wants_reports(arguments: Mapping[str, FieldValue]) -> bool:
    """Return whether the arguments of a consumer ask for reports."""
    return flag(arguments, REPORT_ARGUMENT)


def damage_report(offset: int, damage: str, channel: int) -> Content:
    """Return the content of a report."""
    return offset_header(encode_properties({"headers": {DAMAGE_HEADER: damage}})).frames(0, channel).content(offset, b"")
