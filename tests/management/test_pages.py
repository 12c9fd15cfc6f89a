"""The pages in a real browser: every page and action, with mouse and keyboard, wide and narrow, light and dark."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from holtmq.cli.demo_command import shop
from tests.management.browser import log_in, open_page, running_browser
from tests.management.conftest import Node, running_node

SCREENSHOTS = Path(os.environ.get("HOLTMQ_SCREENSHOTS", ""))
"""The directory for the screenshots of the documentation, set by `make screenshots`."""
PAGES = {
    "overview": "Overview",
    "connections": "Connections",
    "channels": "Channels",
    "consumers": "Consumers",
    "exchanges": "Exchanges",
    "queues": "Queues",
    "bindings": "Bindings",
    "topology": "Topology",
    "explorer": "Route explorer",
    "pipeline": "Pipeline",
    "users": "Users",
    "vhosts": "Virtual hosts",
    "policies": "Policies",
    "definitions": "Definitions",
    "queues/%2F/laptops": "laptops",
    "exchanges/%2F/orders": "orders",
    "users/guest": "guest",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def shop_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A small shop with traffic, as in `make demo`."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "day.html").write_text(
        "<!doctype html><title>A day at the shop</title><h1 id=x>…</h1><script>x.textContent='ran'</script>"
    )
    interval_s = 1.0 if SCREENSHOTS.name else 0.1  # a history has a fixed number of samples: charts need a minute of them
    with running_node(reports=str(folder), stats_interval_s=interval_s) as node:
        assert node.http.post("/api/definitions", shop().to_definitions()).status == 204
        with traffic(node):
            yield node


@contextmanager
def traffic(node: Node) -> Iterator[None]:
    is_over = threading.Event()

    def publish() -> None:
        keys = ("orders.food", "orders.toys.lego", "orders.electronics.laptops.premium", "order.food")
        with node.connect() as amqp:
            channel = amqp.channel()
            channel.consume("food", no_ack=True)
            while not is_over.wait(0.02):
                for key in keys:
                    channel.publish("orders", key, b"an order", headers={"vip": key.endswith("premium")})
                channel.settle()
                amqp.waiting.clear()

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.fixture
def page(browser: Browser, node: Node) -> Iterator[Page]:
    """A page of a new, empty broker."""
    with open_page(browser, node.http.base) as page:
        log_in(page, node.http.base)
        yield page


def visit(page: Page, place: str) -> None:
    page.evaluate("place => { location.hash = '#/' + place; }", place)
    page.get_by_role("heading", level=1).wait_for()


def button(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def expect_notification(page: Page, text: str) -> None:
    expect(page.locator(".toasts")).to_contain_text(text)


def screenshot(page: Page, name: str) -> None:
    if SCREENSHOTS.name:
        page.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, True)], ids=["wide and light", "narrow and dark"])
def test_every_page_shows_fits_and_is_accessible(browser: Browser, shop_node: Node, width: int, is_dark: bool) -> None:  # noqa: FBT001
    with open_page(browser, shop_node.http.base, width=width, is_dark=is_dark) as page:
        page.goto(shop_node.http.base)
        page.get_by_role("heading", name="Log in").wait_for()
        _check(page, width, "login")
        log_in(page, shop_node.http.base)
        for place, title in PAGES.items():
            visit(page, place)
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
            page.wait_for_load_state("networkidle")
            _check(page, width, place)
        page.goto(f"{shop_node.http.base}/api/")
        page.get_by_role("heading", name="HTTP API").wait_for()
        _check(page, width, "api")


def _check(page: Page, width: int, place: str) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{place} is wider than the window"
    found = Axe().run(page)
    assert found.violations_count == 0, f"{place}: {found.generate_report()}"


def test_screenshots_for_the_documentation(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base, height=860) as page:
        log_in(page, shop_node.http.base)
        expect(page.locator(".uplot canvas").first).to_be_visible()
        if SCREENSHOTS.name:  # charts need some samples to show a curve
            expect(page.locator("dt:text-is('uptime') + dd")).to_have_text(re.compile("^(4[5-9]|5[0-9]) s$"), timeout=90_000)
        screenshot(page, "overview")
        visit(page, "topology")
        expect(page.locator(".node")).to_have_count(10)
        screenshot(page, "topology")
        visit(page, "explorer?exchange=orders&key=orders.electronics.laptops.premium")
        expect(page.get_by_text("Routed to 3 queues")).to_be_visible()
        screenshot(page, "explorer")
        visit(page, "queues/%2F/laptops")
        expect(page.get_by_text("orders.*.laptops.#")).to_be_visible()
        screenshot(page, "queue")


def test_a_wrong_password_is_reported_and_logging_out_forgets_the_login(browser: Browser, node: Node) -> None:
    with open_page(browser, node.http.base) as page:
        page.goto(node.http.base)
        page.get_by_label("User").fill("guest")
        page.get_by_label("Password").fill("wrong")
        button(page, "Log in")
        expect(page.get_by_role("alert")).to_contain_text("Login failed")
        log_in(page, node.http.base)
        page.reload()
        page.get_by_role("heading", name="Overview").wait_for()
        button(page, "Log out")
        page.get_by_role("heading", name="Log in").wait_for()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_queue_is_created_used_and_deleted(page: Page, node: Node) -> None:
    visit(page, "queues")
    button(page, "Add queue")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("jobs/<b>1</b> %2F 🦦")
    dialog.get_by_role("button", name="Add argument").click()
    dialog.get_by_label("Arguments 1: name").fill("x-max-length")
    dialog.get_by_label("Arguments 1: type").select_option("number")
    dialog.get_by_label("Arguments 1: value").fill("many")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_have_text('x-max-length: expected a number, got "many"')
    dialog.get_by_label("Arguments 1: value").fill("-5")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("expected an integer from 0")
    dialog.get_by_label("Arguments 1: value").fill("50")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect_notification(page, "Queue jobs/<b>1</b> %2F 🦦 created.")
    page.get_by_role("link", name="jobs/<b>1</b> %2F 🦦").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("jobs/<b>1</b> %2F 🦦")
    expect(page.get_by_text("x-max-length=50").first).to_be_visible()

    page.get_by_label("Payload", exact=True).fill("<script>alert(1)</script>")
    page.get_by_text("Properties and headers").click()
    page.get_by_label("content_type").fill("text/html")
    page.get_by_label("priority").fill("3")
    button(page, "Publish")
    expect_notification(page, "Message published and routed.")
    button(page, "Get messages")
    expect(page.get_by_label("Message 1")).to_contain_text("<script>alert(1)</script>")
    expect(page.get_by_label("Message 1")).to_contain_text('content_type="text/html", delivery_mode=2, priority=3')

    node.http.put("/api/queues/%2F/elsewhere")
    button(page, "Move messages")
    page.get_by_role("dialog").get_by_label("Destination queue").fill("nowhere")
    page.get_by_role("dialog").get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("no queue 'nowhere'")
    page.get_by_role("dialog").get_by_label("Destination queue").fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Move", exact=True).click()
    expect_notification(page, "1 message moved to elsewhere.")
    assert node.http.get("/api/queues/%2F/elsewhere")["messages"] == 1

    button(page, "Purge")
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect_notification(page, "🦦 purged.")
    button(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect_notification(page, "🦦 deleted.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert [queue["name"] for queue in node.http.get("/api/queues")] == ["elsewhere"]


def test_a_stream_is_read_from_an_offset(page: Page, node: Node) -> None:
    node.http.put("/api/queues/%2F/events", {"arguments": {"x-queue-type": "stream"}})
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.confirm()
        for number in range(12):
            channel.publish("", "events", b"event %d" % number)
            channel.next()
        channel.qos(5)
        channel.consume("events", "reader", arguments={"x-stream-offset": 4})
        channel.deliveries(5)
        page.goto(f"{node.http.base}/#/queues/%2F/events")
        expect(page.get_by_text("0 to 11")).to_be_visible()
        shown = node.http.get("/api/queues/%2F/events")
        expect(page.locator(".figure").filter(has_text="in the file")).to_contain_text(
            f"{shown['message_bytes'] / 1024:.1f} KiB"
        )
        expect(page.locator("dl")).to_contain_text(f"chunks{shown['segments']}")
        row = page.get_by_role("row").filter(has_text="reader")
        expect(row.get_by_role("cell").nth(-2)).to_have_text("9")
        expect(row.get_by_role("cell").last).to_have_text("3")
        expect(page.get_by_role("button", name="Purge")).to_have_count(0)
        page.get_by_label("From: first, last").fill("7")
        button(page, "Read messages")
        expect(page.get_by_label("Message 1")).to_contain_text("event 7")


def test_a_form_that_opens_before_the_virtual_hosts_are_loaded_waits_for_them(page: Page, node: Node) -> None:
    node.http.put("/api/queues/%2F/q")
    held: list[Route] = []
    page.route("**/api/vhosts?columns=name", lambda route: held.append(route))
    visit(page, "bindings")
    button(page, "Bind")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From exchange").fill("amq.fanout")
    dialog.get_by_label("Name", exact=True).fill("q")
    dialog.get_by_role("button", name="Bind", exact=True).click()
    assert node.http.get("/api/bindings?default_exchange=false") == []
    for route in held:
        route.continue_()
    expect(dialog.get_by_label("Virtual host")).to_have_value("/")
    dialog.get_by_role("button", name="Bind", exact=True).click()
    expect_notification(page, "Bound q to amq.fanout.")


def test_an_exchange_and_its_bindings(page: Page, node: Node) -> None:
    node.http.put("/api/queues/%2F/q")
    visit(page, "exchanges")
    button(page, "Add exchange")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("desks")
    dialog.get_by_label("Type").select_option("headers")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect_notification(page, "Exchange desks created.")
    page.get_by_role("link", name="desks").click()
    button(page, "Bind")
    dialog.get_by_label("Name", exact=True).fill("q")
    dialog.get_by_role("button", name="Add argument").click()
    dialog.get_by_label("Arguments 1: name").fill("vip")
    dialog.get_by_label("Arguments 1: type").select_option("boolean")
    dialog.get_by_label("Arguments 1: value").fill("true")
    dialog.get_by_role("button", name="Add metadata").click()
    dialog.get_by_label("Metadata 1: name").fill("owner")
    dialog.get_by_label("Metadata 1: value").fill("the shop")
    dialog.get_by_role("button", name="Bind", exact=True).click()
    expect_notification(page, "Bound q to desks.")
    (binding,) = node.http.get("/api/bindings?default_exchange=false")
    assert (binding["arguments"], binding["metadata"]) == ({"vip": True}, {"owner": "the shop"})
    for place, table in (
        ("exchanges/%2F/desks", "Bindings from this exchange"),
        ("queues/%2F/q", "Bindings to this queue"),
        ("bindings", "bindings"),
        ("exchanges/%2F/desks", "Bindings from this exchange"),
    ):
        visit(page, place)
        expect(page.get_by_role("table", name=table)).to_contain_text('owner="the shop"')
        expect(page.get_by_role("table", name=table).locator("time")).to_have_attribute("datetime", binding["created_at"])

    button(page, "Publish")
    expect(page.get_by_text("The message was not routed to any queue")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="vip is missing")).to_be_visible()
    page.get_by_text("Properties and headers").click()
    page.get_by_role("group", name="Headers").get_by_role("button", name="Add header").click()
    page.get_by_label("Headers 1: name").fill("vip")
    page.get_by_label("Headers 1: type").select_option("boolean")
    page.get_by_label("Headers 1: value").fill("true")
    button(page, "Publish")
    expect_notification(page, "Message published and routed.")

    page.get_by_role("button", name=re.compile("Unbind q from desks")).click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind", exact=True).click()
    expect_notification(page, "Binding deleted.")
    visit(page, "bindings")
    button(page, "Bind")
    dialog.get_by_label("From exchange").fill("desks")
    dialog.get_by_role("combobox", name="To", exact=True).select_option("exchange")
    dialog.get_by_label("Name", exact=True).fill("amq.fanout")
    dialog.get_by_role("button", name="Bind", exact=True).click()
    expect_notification(page, "Bound amq.fanout to desks.")
    visit(page, "exchanges/%2F/desks")
    button(page, "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect_notification(page, "Exchange desks deleted.")


def test_users_permissions_vhosts_and_policies(page: Page, node: Node) -> None:
    dialog = page.get_by_role("dialog")
    visit(page, "vhosts")
    button(page, "Add virtual host")
    dialog.get_by_label("Name", exact=True).fill("shop")
    dialog.get_by_label("Description").fill("for the shop")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("for the shop")).to_be_visible()
    visit(page, "users")
    button(page, "Add user")
    dialog.get_by_label("Name", exact=True).fill("bob")
    dialog.get_by_label("Password").fill("secret")
    dialog.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("link", name="bob").click()
    permissions = page.locator("section", has_text="Set permissions").first
    permissions.get_by_label("Virtual host").select_option("shop")
    permissions.get_by_label("Configure").fill("(")
    permissions.get_by_role("button", name="Set permissions").click()
    expect(permissions.get_by_role("alert")).to_contain_text("expected a regular expression")
    permissions.get_by_label("Configure").fill("^bob")
    permissions.get_by_role("button", name="Set permissions").click()
    expect(permissions.get_by_role("table")).to_contain_text("^bob")
    topics = page.locator("section", has_text="Set topic permissions")
    topics.get_by_label("Virtual host").select_option("shop")
    topics.get_by_label("Exchange").fill("amq.topic")
    topics.get_by_label("Write").fill("^orders")
    topics.get_by_role("button", name="Set topic permissions").click()
    expect(topics.get_by_role("table")).to_contain_text("^orders")
    assert node.http.as_user("bob:secret").get("/api/whoami")["tags"] == ["management"]
    topics.get_by_role("button", name="Clear topic permissions for amq.topic").click()
    dialog.get_by_role("button", name="Clear").click()
    expect(topics.get_by_text("the user can use all routing keys")).to_be_visible()

    visit(page, "policies")
    button(page, "Add policy")
    dialog.get_by_label("Name", exact=True).fill("short")
    dialog.get_by_label("Pattern").fill("^tmp")
    dialog.get_by_label("Settings 1: name").fill("max-length")
    dialog.get_by_label("Settings 1: value").fill("10")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("table")).to_contain_text("max-length=10")
    page.get_by_role("button", name="Delete the policy short").click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("No policies.")).to_be_visible()

    visit(page, "users/bob")
    button(page, "Update")
    dialog.get_by_label("Password").fill("other")
    dialog.get_by_label("Tags").fill("monitoring, policymaker")
    dialog.get_by_role("button", name="Update", exact=True).click()
    expect_notification(page, "User bob updated.")
    assert node.http.as_user("bob:other").get("/api/whoami")["tags"] == ["monitoring", "policymaker"]
    page.get_by_role("button", name="Clear permissions in shop").click()
    dialog.get_by_role("button", name="Clear", exact=True).click()
    expect(page.get_by_text("No permissions in any virtual host")).to_be_visible()
    button(page, "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect_notification(page, "User bob deleted.")
    visit(page, "vhosts")
    page.get_by_role("button", name="Delete shop").click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect_notification(page, "Virtual host shop deleted.")


def test_an_open_dialog_stays_with_its_row(page: Page, node: Node) -> None:
    for name in ("a", "b", "c"):
        node.http.put(f"/api/policies/%2F/{name}", {"pattern": name, "definition": {"max-length": 1}})
    visit(page, "policies")
    page.get_by_role("button", name="Delete the policy b").click()
    node.http.delete("/api/policies/%2F/a")
    expect(page.get_by_role("button", name="Delete the policy a")).to_have_count(0)
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect_notification(page, "Policy b deleted.")
    assert [policy["name"] for policy in node.http.get("/api/policies")] == ["c"]


def test_definitions_are_exported_and_imported(page: Page, node: Node, tmp_path: Path) -> None:
    node.http.put("/api/queues/%2F/kept")
    visit(page, "definitions")
    with page.expect_download() as download:
        button(page, "Export")
    path = tmp_path / "definitions.json"
    download.value.save_as(path)
    assert [queue["name"] for queue in json.loads(path.read_text())["queues"]] == ["kept"]
    node.http.delete("/api/queues/%2F/kept")
    (tmp_path / "bad.json").write_text('{"queues": [{"durable": true}]}')
    page.get_by_label("File").set_input_files(tmp_path / "bad.json")
    button(page, "Import")
    expect(page.get_by_role("alert")).to_contain_text("queues[0].name: expected a string, got nothing")
    page.get_by_label("File").set_input_files(path)
    button(page, "Import")
    expect_notification(page, "definitions.json imported.")
    assert node.http.get("/api/queues/%2F/kept")["name"] == "kept"


def test_connections_channels_and_consumers(page: Page, node: Node) -> None:
    amqp = node.connect()
    channel = amqp.channel()
    channel.declare("q")
    channel.consume("q")
    visit(page, "consumers")
    page.get_by_role("link", name=re.compile(r"\(1\)$")).click()
    expect(page.get_by_role("table", name="Consumers of this channel")).to_contain_text("q")
    page.get_by_role("link", name=re.compile(r"^127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+$")).click()
    expect(page.get_by_text("connected since")).to_be_visible()
    button(page, "Close connection")
    page.get_by_role("dialog").get_by_role("button", name="Close connection").click()
    expect_notification(page, "closed.")
    expect(page.get_by_text("No connections.")).to_be_visible()
    amqp.drop()


def test_the_route_explorer_shows_the_route_and_tries_a_binding(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        visit(page, "explorer")
        page.get_by_label("Exchange", exact=True).select_option("orders")
        page.get_by_label("Routing key", exact=True).fill("orders.food.fresh")
        expect(page.get_by_text("Routed to 1 queue", exact=True)).to_be_visible()
        expect(page.locator(".edge.lit").first).to_be_visible()
        expect(page.locator(".edge.near").first).to_be_attached()
        expect(page.get_by_text("Near misses").first).to_be_visible()
        page.get_by_role("group", name="Headers").get_by_role("button", name="Add header").click()
        page.get_by_label("Headers 1: name").fill("vip")
        page.get_by_label("Headers 1: type").select_option("boolean")
        page.get_by_label("Headers 1: value").fill("true")
        expect(page.get_by_text("Routed to 2 queues")).to_be_visible()
        page.get_by_label("Try a new binding").check()
        draft = page.get_by_role("group", name="New binding")
        draft.get_by_label("From exchange").fill("orders")
        draft.get_by_label("Name", exact=True).fill("food")
        draft.get_by_label("Binding key").fill("orders.food.#")
        expect(page.get_by_text("With the new binding, the message also reaches food.")).to_be_visible()
        expect(page.locator(".edge.new")).to_be_attached()
        button(page, "Create binding")
        expect_notification(page, "Bound food to orders.")
        expect(page.get_by_text("Routed to 3 queues")).to_be_visible()
        shop_node.http.delete("/api/bindings/%2F/e/orders/q/food/orders.food.%2523")


@pytest.mark.parametrize("is_by_policy", [False, True], ids=["argument", "policy"])
def test_the_route_explorer_follows_the_alternate_exchange(page: Page, node: Node, *, is_by_policy: bool) -> None:
    node.http.put("/api/queues/%2F/unrouted")
    node.http.post("/api/bindings/%2F/e/amq.fanout/q/unrouted", {})
    setting = {"alternate-exchange": "amq.fanout"}
    node.http.put("/api/exchanges/%2F/main", {"type": "topic", "arguments": {} if is_by_policy else setting})
    if is_by_policy:
        node.http.put("/api/policies/%2F/p", {"pattern": "^main$", "definition": setting})
    visit(page, "explorer?exchange=main&key=a.b")
    expect(page.get_by_text("Routed to 1 queue", exact=True)).to_be_visible()
    expect(page.locator(".edge.lit")).to_have_count(2)
    expect(page.locator(".edge-label")).to_have_text("no match")


def test_the_topology_by_keyboard(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        visit(page, "topology")
        expect(page.locator(".node")).to_have_count(10)
        page.get_by_label("Search").fill("vip")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Open vip-desk")).to_be_visible()
        page.get_by_label("Distance").select_option("1")
        expect(page.locator(".node")).to_have_count(2)
        page.get_by_role("button", name=re.compile("^exchange desks")).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Open desks")).to_be_visible()
        button(page, "Show all")
        expect(page.locator(".node")).to_have_count(10)
        button(page, "Zoom in")
        button(page, "Fit")


Box: TypeAlias = tuple[float, float, float, float]


def boxes(page: Page, selector: str) -> list[Box]:
    """Return left, top, right and bottom of all elements that match a selector."""
    found: list[Box] = page.eval_on_selector_all(
        selector, "all => all.map(each => each.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom])"
    )
    return found


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_nothing_covers_a_node_of_the_topology(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base, width=1360, height=860) as page:
        log_in(page, shop_node.http.base)
        visit(page, "topology")
        expect(page.locator(".node")).to_have_count(10)
        nodes, others = boxes(page, ".node rect"), boxes(page, ".map .tools, .edge-label")
        assert len(others) > 1
        assert [(node, other) for node in nodes for other in others if overlap(node, other)] == []
        assert all(bottom <= 860 for *_, bottom in nodes)


@pytest.mark.parametrize("width", [1920, 1360, 1000, 800, 390])
def test_tiles_fill_their_rows(browser: Browser, shop_node: Node, width: int) -> None:
    with open_page(browser, shop_node.http.base, width=width, height=860) as page:
        log_in(page, shop_node.http.base)
        for place, count in (("overview", 10), ("queues/%2F/laptops", 6)):
            visit(page, place)
            expect(page.locator(".figure")).to_have_count(count)
            rows = Counter(top for _, top, *_ in boxes(page, ".figure"))
            assert len(set(rows.values())) == 1, rows
            overflowing = "all => all.filter(each => each.scrollWidth > each.clientWidth).length"
            assert page.eval_on_selector_all(".figure", overflowing) == 0


def test_a_pipeline_without_reports_says_how_to_write_one(page: Page, browser: Browser, tmp_path: Path) -> None:
    visit(page, "pipeline")
    expect(page.get_by_role("heading", name="No reports yet")).to_be_visible()
    expect(page.get_by_text("This broker was started without a report folder.")).to_be_visible()
    expect(page.get_by_text("holtmq serve --reports reports/")).to_be_visible()
    expect(page.get_by_text("holtmq pipeline report ARCHIVE")).to_be_visible()
    _check(page, 1280, "pipeline")
    with running_node(reports=str(tmp_path)) as node, open_page(browser, node.http.base) as other:
        log_in(other, node.http.base)
        visit(other, "pipeline")
        expect(other.get_by_text(f"The report folder of this broker is {tmp_path}.")).to_be_visible()
        expect(other.get_by_text(f"--html {tmp_path}/traffic.html")).to_be_visible()


def test_the_pipeline_page_lists_runs(page: Page, node: Node) -> None:
    visit(page, "pipeline")
    expect(page.get_by_text(f"--http-url {node.http.base}")).to_be_visible()
    stream = {"job": "archive", "input": "amqp://127.0.0.1:5672, queue orders", "output": "lake/orders", "queue": "orders"}
    node.http.put("/api/queues/%2F/orders", {"durable": True})
    node.http.put("/api/runs/%2F/1", {**stream, "rows": 1_234_567, "state": "running"})
    failure = "no broker at amqp://127.0.0.1:1/%2F: [Errno 111] Connection refused"
    node.http.put("/api/runs/%2F/2", {"job": "replay", "input": "lake/orders", "state": "failed", "error": failure})
    read = {"job": "read", "input": "queue orders", "rows": 42, "state": "planned"}
    node.http.put("/api/runs/%2F/3", read)
    page.reload()
    rows = page.get_by_role("region", name="Runs").get_by_role("row")
    expect(rows).to_have_count(4)
    expect(rows.filter(has_text="archive")).to_contain_text("1,234,567")
    expect(rows.filter(has_text="replay")).to_contain_text(failure)
    planned = rows.filter(has_text="planned").get_by_role("cell")
    expect(planned.filter(has_text="42")).to_have_text("42")  # without a rate
    expect(planned.last).to_have_text("–")
    _check(page, 1280, "pipeline")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("connections", "No connections."),
        ("channels", "No open channels."),
        ("consumers", "No consumers."),
        ("queues", "No queues."),
        ("bindings", "No bindings."),
        ("topology", "No queues, and no exchanges besides the predeclared ones."),
        ("policies", "No policies."),
    ],
)
def test_an_empty_page_says_so(page: Page, place: str, text: str) -> None:
    visit(page, place)
    expect(page.locator(".empty")).to_contain_text(text)
    _check(page, 1280, place)


def test_reports_open_within_the_page(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        visit(page, "pipeline")
        button(page, "A day at the shop")
        report = page.frame_locator("iframe")
        expect(report.get_by_role("heading", name="ran")).to_be_visible()
        button(page, "Close report")
        expect(page.locator("iframe")).to_have_count(0)


def test_reports_open_in_a_new_tab(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        visit(page, "pipeline")
        with page.expect_popup() as popup:
            button(page, "Open A day at the shop in a new tab")
        expect(popup.value.get_by_role("heading", name="ran")).to_be_visible()


def test_the_theme_is_remembered(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        button(page, "Theme")
        page.reload()
        page.get_by_role("heading", name="Overview").wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_keyboard_skips_the_menu(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        page.locator("body").press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_a_phone_has_a_menu(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base, width=390, height=800) as page:
        log_in(page, shop_node.http.base)
        queues = page.get_by_role("link", name="Queues", exact=True)
        expect(queues).to_be_hidden()
        button(page, "Menu")
        queues.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        screenshot(page, "phone")


def test_pages_report_missing_permissions(browser: Browser, node: Node) -> None:
    node.http.put("/api/users/man", {"password": "p", "tags": "management"})
    with open_page(browser, node.http.base) as page:
        log_in(page, node.http.base, "man", "p")
        expect(page.get_by_role("link", name="Users")).to_have_count(0)
        visit(page, "users")
        expect(page.get_by_role("alert").first).to_contain_text("requires one of the tags administrator")
        visit(page, "queues")
        expect(page.get_by_text("No queues.")).to_be_visible()


def test_an_invalid_address_is_not_found(browser: Browser, shop_node: Node) -> None:
    with open_page(browser, shop_node.http.base) as page:
        log_in(page, shop_node.http.base)
        visit(page, "queues/%2F/100%")
        expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
        visit(page, "queues/%2F/..")
        expect(page.get_by_role("alert").first).to_contain_text("browsers-cannot-send-this-name")


def test_a_broker_that_does_not_respond_is_reported(browser: Browser) -> None:
    with running_node() as node, open_page(browser, node.http.base) as page:
        log_in(page, node.http.base)
        page.route("**/api/**", lambda route: route.abort())
        visit(page, "queues")
        expect(page.get_by_role("alert")).to_have_text("The broker does not respond. Check that it is running.")


def test_a_thousand_queues_are_listed_and_found(browser: Browser) -> None:
    with running_node() as node:
        names = [f"queue-{number:04}" for number in range(1000)]
        exchanges = [{"name": f"ex-{number}", "vhost": "/", "type": "topic"} for number in range(5)]
        queues = [{"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in names]
        bindings = [
            {"source": f"ex-{number % 5}", "vhost": "/", "destination": name, "routing_key": f"k.{number}"}
            for number, name in enumerate(names)
        ]
        definitions = {"exchanges": exchanges, "queues": queues, "bindings": bindings}
        assert node.http.post("/api/definitions", definitions).status == 204
        with open_page(browser, node.http.base) as page:
            log_in(page, node.http.base)
            visit(page, "queues")
            expect(page.get_by_text("1,000 of 1,000")).to_be_visible()
            page.get_by_role("searchbox").fill("0777")
            expect(page.get_by_role("link", name="queue-0777")).to_be_visible()
            expect(page.get_by_text("1 of 1,000")).to_be_visible()
            visit(page, "topology")
            expect(page.locator(".node.bundle")).to_have_count(5)
            page.locator(".node.bundle").first.click()
            expect(page.locator(".node")).to_have_count(5 + 4 + 200)
            button(page, "Collapse groups")
            expect(page.locator(".node")).to_have_count(10)
            page.get_by_label("Search").fill("queue-0999")
            page.keyboard.press("Enter")
            expect(page.get_by_role("link", name="Open queue-0999")).to_be_visible()
            expect(page.locator(".node")).to_have_count(3)  # the queue, its exchange, and a group of the other queues
            button(page, "Show all")
            expect(page.locator(".node")).to_have_count(10)
