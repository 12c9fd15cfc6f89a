"""Computations in steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holtmq import steps
from holtmq.steps import complete

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=40)


@given(PAIRS, st.booleans(), st.none() | st.integers(0, 45), st.integers(1, 9))
def test_sorting_in_steps_gives_what_sorted_gives(
    pairs: list[tuple[int, int]],
    is_reversed: bool,  # noqa: FBT001
    most: int | None,
    run: int,
) -> None:
    steps.RUN, kept = run, steps.RUN
    try:
        found = complete(steps.sort(pairs, lambda pair: pair[0], is_reversed=is_reversed, most=most))
    finally:
        steps.RUN = kept
    assert found == sorted(pairs, key=lambda pair: pair[0], reverse=is_reversed)[:most]


def test_sorting_yields_between_runs_and_items() -> None:
    assert sum(1 for _ in steps.sort(range(2 * steps.RUN), lambda number: -number)) == 2 + 2 * steps.RUN
