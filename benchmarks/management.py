"""What it costs to be looked at: python -m benchmarks.management [--rounds N] [cost | listing | pages]

The same load goes to a broker in turns: with no HTTP API, with the API and nobody there, with the pages open. "Open pages" are
the requests that three tabs send (overview, queues, topology), as often as they send them; a browser on the same two cores
would be measured along with the broker, so it is not part of this. Prints tables for benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from holtmq.bench import Load, run_load
from holtmq.client.address import Address
from tests.management.browser import log_in, open_page, running_browser
from tests.management.conftest import running_node
from tests.server.process import broker_process

LISTED = (
    "name,vhost,durable,auto_delete,exclusive,arguments,policy,messages,messages_ready,messages_unacknowledged,consumers,"
    "message_stats"
)
TABS = (
    ("/api/overview?msg_rates_age=600&msg_rates_incr=5&lengths_age=600&lengths_incr=5", 5.0),
    ("/api/nodes", 5.0),
    (f"/api/queues?columns={LISTED}&page=1&page_size=50&sort=name&pagination=true", 5.0),
    ("/api/topology/%2F", 2.0),
)
LOADS = {
    "100 B, transient, auto-ack": Load(size=100, auto_ack=True, time_s=5),
    "100 B, persistent, confirmed, acked": Load(size=100, persistent=True, confirm=1000, qos=1000, time_s=5),
}
QUEUES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["cost", "listing", "pages"], help="of cost, listing, pages")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if "cost" in options.parts:
        measure_cost(options.rounds)
    if "listing" in options.parts:
        measure_listing(options.rounds)
    if "pages" in options.parts:
        measure_pages()


def measure_cost(rounds: int) -> None:
    print("| load | without HTTP | with HTTP, nobody there | with pages open | fall, pages open |")
    print("|---|---|---|---|---|")
    for name, load in LOADS.items():
        figures: dict[str, list[float]] = {"off": [], "on": [], "open": []}
        for number in range(rounds):
            for state in figures if number % 2 == 0 else reversed(figures):
                figures[state].append(_received_per_s(load, state))
        median = {state: statistics.median(values) for state, values in figures.items()}
        falls = [1 - opened / off for off, opened in zip(figures["off"], figures["open"], strict=True)]
        cells = " | ".join(f"{median[state]:,.0f}/s" for state in figures)
        print(
            f"| {name} | {cells} | {statistics.median(falls):.1%} (each round: {', '.join(f'{fall:.1%}' for fall in falls)}) |"
        )


def _received_per_s(load: Load, state: str) -> float:
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        options = ("--http-port", "-1" if state == "off" else "0", "--log-level", "error")
        with broker_process(Path(folder) / "b.db", *options) as broker:
            address = Address.parse(f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F")
            if state != "open":
                return run_load(address, load).received_per_s
            base = next(word.rstrip(",") for word in broker.ready_line.split() if word.startswith("http://"))
            with open_tabs(base):
                return run_load(address, load).received_per_s


@contextmanager
def open_tabs(base: str) -> Iterator[None]:
    """Look at the pages from a process of its own, so that the load generator is not held up."""
    process = multiprocessing.get_context("spawn").Process(target=_look, args=(base,), daemon=True)
    process.start()
    yield
    process.terminate()
    process.join()


def _look(base: str) -> None:
    due = dict.fromkeys(TABS, 0.0)
    while True:
        for tab, at_s in due.items():
            if time.monotonic() >= at_s:
                fetch(base, tab[0])
                due[tab] = time.monotonic() + tab[1]
        time.sleep(0.05)


def fetch(base: str, path: str, method: str = "GET", body: object = None) -> bytes:
    connection = HTTPConnection(urlsplit(base).netloc, timeout=30)
    headers = {"authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}", "content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.status < 300, content
    return content


def measure_listing(rounds: int) -> None:
    print("| request, 10,000 queues with messages | median | slowest | size |")
    print("|---|---|---|---|")
    with running_node(stats_interval_s=5.0) as node:
        queues = [{"name": f"queue-{number:05}", "vhost": "/", "durable": True} for number in range(QUEUES)]
        bindings = [{"source": "amq.fanout", "vhost": "/", "destination": queue["name"]} for queue in queues]
        base = node.http.base
        fetch(base, "/api/definitions", "POST", {"queues": queues, "bindings": bindings})
        message = {"properties": {}, "routing_key": "", "payload": "x", "payload_encoding": "string"}
        for _ in range(3):
            fetch(base, "/api/exchanges/%2F/amq.fanout/publish", "POST", message)
        for path in (
            "/api/queues",
            "/api/queues?disable_stats=true",
            "/api/queues?page=1&page_size=100",
            "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
            "/api/queues?page=1&name=0777",
            "/api/topology/%2F",
            "/metrics/per-object",
        ):
            times, content = [], b""
            for _ in range(max(rounds, 5)):
                started = time.perf_counter()
                content = fetch(base, path)
                times.append(time.perf_counter() - started)
            median_ms, slowest_ms = statistics.median(times) * 1000, max(times) * 1000
            print(f"| `{path}` | {median_ms:.0f} ms | {slowest_ms:.0f} ms | {len(content) / 2**20:.1f} MiB |")


PAUSE = """() => new Promise((resolve) => {
    let last = performance.now(), longest = 0;
    const look = () => { const now = performance.now(); longest = Math.max(longest, now - last); last = now; };
    const timer = setInterval(look, 5);
    setTimeout(() => { clearInterval(timer); resolve(longest); }, 6000);
})"""


def measure_pages() -> None:
    """How long a page cannot answer at most, while it loads and refreshes, with 1,000 queues."""
    print("| page, 1,000 queues | first shown after | longest pause |")
    print("|---|---|---|")
    with running_node() as node, running_browser() as browser, open_page(browser, node.http.base) as page:
        queues = [{"name": f"queue-{number:04}", "vhost": "/", "durable": True} for number in range(1000)]
        exchanges = [{"name": f"ex-{number}", "vhost": "/", "type": "topic"} for number in range(20)]
        bindings = [
            {"source": f"ex-{number % 20}", "vhost": "/", "destination": f"queue-{number:04}", "routing_key": f"k.{number}"}
            for number in range(1000)
        ]
        fetch(node.http.base, "/api/definitions", "POST", {"queues": queues, "exchanges": exchanges, "bindings": bindings})
        log_in(page, node.http.base)
        for place, shown in (("queues", "table"), ("bindings", "table"), ("topology", ".node")):
            started = time.perf_counter()
            page.evaluate("place => { location.hash = '#/' + place; }", place)
            page.locator(shown).first.wait_for()
            elapsed_ms = (time.perf_counter() - started) * 1000
            print(f"| {place} | {elapsed_ms:.0f} ms | {page.evaluate(PAUSE):.0f} ms |")


if __name__ == "__main__":
    main()
