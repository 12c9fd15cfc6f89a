"""The ledger notices each violation of a guarantee, and nothing that is allowed."""

from __future__ import annotations

import pytest

from tests.faults.ledger import Found, Ledger, Mark, ViolationError

FIRST, SECOND = Mark(1, 1, size=10), Mark(1, 2, size=10)
TRANSIENT = Mark(1, 3, is_persistent=False)


@pytest.fixture
def ledger() -> Ledger:
    """Two messages are in a queue for certain."""
    ledger = Ledger(unordered=["dead"])
    for mark in (FIRST, SECOND):
        ledger.publish(mark, ["q"])
        ledger.confirm(mark, ["q"])
    return ledger


def found(*marks: Mark, redelivered: bool = False, attempts: int | None = None) -> dict[str, list[Found]]:
    return {"q": [Found(mark.body(), redelivered, attempts) for mark in marks], "dead": []}


def test_a_queue_that_holds_what_was_confirmed_is_in_order(ledger: Ledger) -> None:
    ledger.audit(found(FIRST, SECOND))


def test_a_confirmed_message_that_is_lost(ledger: Ledger) -> None:
    with pytest.raises(ViolationError, match=r"1 confirmed messages are lost: 1\.2 in q"):
        ledger.audit(found(FIRST))


def test_what_was_not_confirmed_may_be_lost_or_not(ledger: Ledger) -> None:
    third = Mark(1, 9)
    ledger.publish(third, ["q"])
    ledger.audit(found(FIRST, SECOND))
    ledger.audit(found(FIRST, SECOND, third, redelivered=True))


def test_an_acknowledgement_under_way_may_have_arrived_or_not(ledger: Ledger) -> None:
    ledger.settle("q", FIRST)
    ledger.audit(found(SECOND))
    ledger.audit(found(FIRST, SECOND, redelivered=True))


def test_a_message_that_came_back_must_stay(ledger: Ledger) -> None:
    ledger.settle("q", FIRST)
    ledger.audit(found(FIRST, SECOND))
    with pytest.raises(ViolationError, match="lost"):
        ledger.audit(found(SECOND, redelivered=True))


def test_an_acknowledged_message_that_comes_back(ledger: Ledger) -> None:
    ledger.settle("q", FIRST)
    ledger.sync("q", FIRST)
    with pytest.raises(ViolationError, match=r"1\.1 was acknowledged in q, and came back"):
        ledger.audit(found(FIRST, SECOND))


def test_a_message_that_is_there_twice(ledger: Ledger) -> None:
    with pytest.raises(ViolationError, match=r"1\.2 is in q twice"):
        ledger.audit(found(FIRST, SECOND, SECOND))


def test_a_message_in_a_queue_that_it_was_not_routed_to(ledger: Ledger) -> None:
    with pytest.raises(ViolationError, match=r"1\.1 is in other, to which it was not routed"):
        ledger.deliver("other", "c", FIRST.body(), is_redelivered=False)


def test_a_damaged_body(ledger: Ledger) -> None:
    with pytest.raises(ViolationError, match="damaged"):
        ledger.deliver("q", "c", FIRST.body()[:-1] + b"?", is_redelivered=False)


def test_a_second_delivery_without_redelivered(ledger: Ledger) -> None:
    ledger.deliver("q", "c", FIRST.body(), is_redelivered=False)
    ledger.deliver("q", "d", FIRST.body(), is_redelivered=True)
    with pytest.raises(ViolationError, match="without `redelivered`"):
        ledger.deliver("q", "e", FIRST.body(), is_redelivered=False)


def test_an_audit_is_a_delivery(ledger: Ledger) -> None:
    ledger.audit(found(FIRST, SECOND))
    with pytest.raises(ViolationError, match="without `redelivered`"):
        ledger.audit(found(FIRST, SECOND))


def test_deliveries_out_of_order(ledger: Ledger) -> None:
    ledger.deliver("q", "c", SECOND.body(), is_redelivered=False)
    with pytest.raises(ViolationError, match=r"1\.1 was delivered from q to c after 2"):
        ledger.deliver("q", "c", FIRST.body(), is_redelivered=False)


def test_a_queue_out_of_order(ledger: Ledger) -> None:
    with pytest.raises(ViolationError, match=r"1\.1 is in q behind 1\.2"):
        ledger.audit(found(SECOND, FIRST))


def test_a_transient_message_that_survives_the_broker(ledger: Ledger) -> None:
    ledger.publish(TRANSIENT, ["q"])
    ledger.end_broker()
    ledger.audit(found(FIRST, SECOND))
    with pytest.raises(ViolationError, match="survived the end of the broker"):
        ledger.audit(found(FIRST, SECOND, TRANSIENT, redelivered=True))


def test_half_a_transaction(ledger: Ledger) -> None:
    marks = [Mark(2, number) for number in (1, 2)]
    for mark in marks:
        ledger.publish(mark, ["q"], group=7)
    ledger.audit(found(FIRST, SECOND, *marks))
    ledger.audit(found(FIRST, SECOND, redelivered=True))
    with pytest.raises(ViolationError, match="half of transaction 7"):
        ledger.audit(found(FIRST, SECOND, marks[1], redelivered=True))


def test_a_rejected_message_is_in_one_queue_or_the_other(ledger: Ledger) -> None:
    ledger.settle("q", FIRST, "dead")
    ledger.audit({"q": found(SECOND)["q"], "dead": found(FIRST)["q"]})
    with pytest.raises(ViolationError, match="lost"):
        ledger.audit(found(SECOND, redelivered=True))


def test_a_rejected_message_whose_rejection_is_on_disk_is_a_dead_letter(ledger: Ledger) -> None:
    ledger.settle("q", FIRST, "dead")
    ledger.sync("q", FIRST)
    with pytest.raises(ViolationError, match=r"1\.1 in dead"):
        ledger.audit(found(SECOND))


def test_an_attempt_that_is_counted_twice(ledger: Ledger) -> None:
    ledger.claim("q", FIRST.body(), 1)
    ledger.claim("q", FIRST.body(), 2)
    with pytest.raises(ViolationError, match="delivered twice from q in attempt 2"):
        ledger.claim("q", FIRST.body(), 2)


def test_an_attempt_that_is_forgotten(ledger: Ledger) -> None:
    ledger.claim("q", FIRST.body(), 3)
    with pytest.raises(ViolationError, match="counts 2 attempts"):
        ledger.audit(found(FIRST, SECOND, attempts=2))


def test_a_report_that_was_overtaken_by_an_acknowledgement_is_no_violation(ledger: Ledger) -> None:
    ledger.claim("q", FIRST.body(), 2)
    ledger.settle("q", FIRST, attempt=2)
    ledger.sync("q", FIRST, 2)
    ledger.claim("q", FIRST.body(), 1)
    with pytest.raises(ViolationError, match="came back"):
        ledger.claim("q", FIRST.body(), 3)


@pytest.fixture
def streaming() -> Ledger:
    """A persistent message and a transient one are in a stream for certain, and a reader has seen them."""
    ledger = Ledger(streams=["q"])
    for mark in (FIRST, TRANSIENT):
        ledger.publish(mark, ["q"])
        ledger.confirm(mark, ["q"])
    ledger.audit(found(FIRST, TRANSIENT))
    return ledger


def test_a_stream_keeps_everything_and_is_read_again(streaming: Ledger) -> None:
    streaming.end_broker()
    other = Mark(2, 1)
    streaming.publish(other, ["q"])
    streaming.audit(found(FIRST, TRANSIENT, other))
    streaming.forget_stream("q")
    streaming.audit(found())


def test_a_message_of_a_stream_that_has_moved(streaming: Ledger) -> None:
    other = Mark(2, 1)
    streaming.publish(other, ["q"])
    with pytest.raises(ViolationError, match=r"1\.1 was at offset 0 of q, and is not there any more"):
        streaming.audit(found(other, FIRST, TRANSIENT))


def test_a_message_of_a_stream_that_is_redelivered(streaming: Ledger) -> None:
    with pytest.raises(ViolationError, match="with `redelivered`"):
        streaming.audit(found(FIRST, TRANSIENT, redelivered=True))
