"""docs/conformance.md matches the tables."""

from __future__ import annotations

from tests.conformance.page import PAGE, render


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run python -m tests.conformance.page"
