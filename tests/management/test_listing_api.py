"""Lists: filter, order, pages and columns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holtmq.management.listing import Items, Listing
from tests.management.conftest import Node
from tests.management.http import Http, assert_answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/api/queues?page=0", None, 400, "page: expected a number from 1"),
        ("GET", "/api/queues?page=9", None, 400, "page 9 is out of range"),
        ("GET", "/api/queues?page=1&name=(&use_regex=true", None, 400, "name: expected a regular expression"),
    ],
)
def test_invalid_list_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_lists_are_filtered_sorted_paginated_and_trimmed(node: Node) -> None:
    http = node.http
    for number in range(25):
        http.put(f"/api/queues/%2F/q{number:02}")
    with node.connect() as amqp:
        channel = amqp.channel()
        for queue in ("q03", "q03", "q07"):
            channel.publish("", queue, b"x")
        channel.settle()
    page = http.get("/api/queues?page=2&page_size=10&sort=name")
    assert (page["total_count"], page["filtered_count"], page["item_count"], page["page_count"]) == (25, 25, 10, 3)
    assert [item["name"] for item in page["items"]] == [f"q{number}" for number in range(10, 20)]
    busiest = http.get("/api/queues?page=1&page_size=2&sort=messages&sort_reverse=true&columns=name,messages")
    assert busiest["items"] == [{"name": "q03", "messages": 2}, {"name": "q07", "messages": 1}]
    assert [item["name"] for item in http.get("/api/queues?page=1&name=Q1&columns=name")["items"]][:2] == ["q10", "q11"]
    assert len(http.get("/api/queues?page=1&name=^q0[1-3]$&use_regex=true")["items"]) == 3
    (dotted,) = http.get("/api/queues?page=1&name=q07&columns=name,message_stats.publish,nope.x")["items"]
    assert dotted == {"name": "q07", "message_stats": {"publish": 1}}
    assert "message_stats" not in http.get("/api/queues?disable_stats=true")[0]
    assert http.get("/api/queues?disable_stats=true&enable_queue_totals=true")[3]["messages"] == 2


def test_a_filter_with_exponential_backtracking_takes_linear_time(http: Http) -> None:
    http.put(f"/api/queues/%2F/{'a' * 60}!")
    assert http.get("/api/queues?page=1&use_regex=true&name=(a%2B)%2B%24")["items"] == []


def test_only_the_objects_of_the_page_are_shown() -> None:
    shown: list[int] = []

    def view(number: int) -> dict[str, Any]:
        shown.append(number)
        return {"name": str(number)}

    items = Items(range(1000), view, lambda number: (str(number),), keys={"size": lambda number: -number})
    page = asyncio.run(Listing.of({"page": "2", "page_size": "3", "sort": "size", "name": "9"}).present(items))
    assert isinstance(page, dict)
    assert [item["name"] for item in page["items"]] == ["996", "995", "994"]
    assert (page["total_count"], page["filtered_count"], page["page_count"]) == (1000, 271, 91)
    assert shown == [996, 995, 994]
