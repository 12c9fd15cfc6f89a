"""The headers that number a message: what removes them leaves everything else as it was."""

from holtmq.queueing.publishing_id import numbered_by, unnumbered
from holtmq.table import FieldValue
from holtmq.wire.content import Properties, encode_properties
from holtmq.wire.tables import encode_table


def test_only_the_headers_that_number_a_message_are_removed() -> None:
    numbered: dict[str, FieldValue] = {"x-publisher": "importer", "x-publishing-id": 7}
    others: dict[str, FieldValue] = {"kept": True, "nested": {"x-publisher": "another"}}
    raw = encode_properties({"message_id": "m", "headers": encode_table({**numbered, **others})})
    left = Properties(unnumbered(raw))
    assert (numbered_by(Properties(raw)), numbered_by(left)) == (("importer", 7), None)
    assert (left.headers, left.without_headers()["message_id"]) == (others, "m")


def test_properties_without_a_number_stay_as_they_are() -> None:
    unreadable = encode_properties({"headers": b"\x00\x00\x00\x0d\x0bx-publisher\xff"})
    for raw in (encode_properties({}), encode_properties({"headers": encode_table({"kept": 1})}), unreadable):
        assert unnumbered(raw) == raw
