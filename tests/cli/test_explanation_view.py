"""An explanation in a terminal: the plain text, with colours."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holtmq import Explanation, Router
from holtmq.cli.demo_command import shop
from holtmq.cli.explanation_view import explanation_view


@pytest.fixture(params=[("orders", "orders.food"), ("orders", "order.food"), ("", "laptops"), ("", "nobody")])
def explanation(request: pytest.FixtureRequest) -> Explanation:
    exchange, key = request.param
    return Router(shop()).explain(exchange, key, {"vip": True})


def test_without_colours_it_is_the_plain_text(explanation: Explanation) -> None:
    assert printed(explanation, is_terminal=False) == str(explanation)


def test_a_terminal_gets_colours(explanation: Explanation) -> None:
    assert "\x1b[" in printed(explanation, is_terminal=True)
    assert "\x1b[" not in str(explanation)


def printed(explanation: Explanation, *, is_terminal: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, color_system="standard" if is_terminal else None, width=120)
    console.print(explanation_view(explanation))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
