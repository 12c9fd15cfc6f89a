"""A real browser on the pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.deadline import PATIENCE_S
from tests.peers.peer import CHROMIUM

TIMEOUT_MS = 1000 * PATIENCE_S


@contextmanager
def running_browser() -> Iterator[Browser]:
    program = CHROMIUM.program()
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, base: str, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> Iterator[Page]:
    """A page of its own. Whatever a script complains about, and any request to another host, fails the test."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if is_dark else "light")
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message.text, message.type) else None)
    page.on("request", lambda request: complaints.append(request.url) if not _is_ours(request.url, base) else None)
    yield page
    assert complaints == []
    context.close()


def log_in(page: Page, base: str, user: str = "guest", password: str = "guest") -> None:
    page.goto(base)
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()


def _is_complaint(text: str, kind: str) -> bool:
    """A refusal of the broker is shown in the page; that the browser notes it as well is no complaint."""
    return kind in ("error", "warning") and "Failed to load resource" not in text


def _is_ours(url: str, base: str) -> bool:
    return url.startswith((base, "data:", "blob:", "about:"))
