"""The cost of management: python -m benchmarks.management [--rounds N] [cost | listing | pages]

`cost` opens and closes the pages in turns while a load runs at full speed, and repeats the load on a broker without the HTTP
API. "Pages open" stands for the requests of three tabs (overview, queues, topology) at their usual intervals. There is no
browser: on the same two cores it would be measured along with the broker. Prints tables for benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.brokers import cpu_s
from holtmq.bench import Load, run_load
from holtmq.bench.load import Sample
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
    "100 B, transient, auto-ack": Load(size=100, auto_ack=True),
    "100 B, persistent, confirmed, acked": Load(size=100, persistent=True, confirm=1000, qos=1000),
}
WARM_UP_S = 2
TURN_S = 10
"""Long enough for every tab to refresh twice."""
QUEUES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["cost", "listing", "pages"], help="cost, listing, pages (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if "cost" in options.parts:
        measure_cost(options.rounds)
    if "listing" in options.parts:
        measure_listing(options.rounds)
    if "pages" in options.parts:
        measure_pages()


@dataclass
class Slices:
    """Turns of a few seconds each within one load: messages received, and the processor time that the broker used."""

    received: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def per_s(self) -> list[float]:
        return [received / seconds for received, seconds in zip(self.received, self.seconds, strict=True)]

    def cpu_us(self) -> list[float]:
        return [cpu_s * 1e6 / received for cpu_s, received in zip(self.cpu_s, self.received, strict=True)]


def measure_cost(rounds: int) -> None:
    """Compare throughput and processor time with and without open pages."""
    print("| load | | without HTTP | with HTTP, no pages open | with pages open | open vs. without | open vs. no pages |")
    print("|---|---|---|---|---|---|---|")
    for name, load in LOADS.items():
        found = {state: Slices() for state in ("off", "on", "open")}
        for number in range(rounds):
            turns = ("on", "open", "open", "on") if number % 2 == 0 else ("open", "on", "on", "open")
            _run_turns(load, ("off", "off"), found)
            _run_turns(load, turns, found)
        for figure, unit in ((Slices.per_s, "messages/s"), (Slices.cpu_us, "µs of processor time per message")):
            medians = [statistics.median(figure(slices)) for slices in found.values()]
            changes = [opened / on - 1 for on, opened in zip(figure(found["on"]), figure(found["open"]), strict=True)]
            cells = " | ".join(f"{median:,.2f}" if median < 100 else f"{median:,.0f}" for median in medians)
            low, middle, high = statistics.quantiles(changes, n=4)
            versus_off = medians[2] / medians[0] - 1
            print(f"| {name} | {unit} | {cells} | {versus_off:+.1%} | {middle:+.1%} (half from {low:+.1%} to {high:+.1%}) |")


def _run_turns(load: Load, turns: Sequence[str], found: dict[str, Slices]) -> None:
    """Run one load on one broker, and open and close the pages meanwhile. Neighbouring turns can be compared."""
    http_port = "-1" if turns[0] == "off" else "0"
    with (
        tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder,
        broker_process(Path(folder) / "b.db", "--http-port", http_port, "--log-level", "error") as broker,
        Tabs(broker.ready_line) as tabs,
    ):
        address = Address.parse(f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F")
        marks: list[tuple[Sample, float]] = []

        def at_each_second(sample: Sample) -> None:
            if sample.seconds < WARM_UP_S + TURN_S * len(marks):
                return
            if len(marks) < len(turns) and turns[len(marks)] == "open":
                tabs.show()
            else:
                tabs.hide()
            marks.append((sample, cpu_s(broker.process.pid)))

        run_load(address, replace(load, time_s=WARM_UP_S + TURN_S * len(turns) + 2), at_each_second)
    for turn, ((before, cpu_before_s), (after, cpu_after_s)) in zip(turns, pairwise(marks), strict=True):
        slices = found[turn]
        slices.received.append(after.received - before.received)
        slices.seconds.append(after.seconds - before.seconds)
        slices.cpu_s.append(cpu_after_s - cpu_before_s)


class Tabs:
    """The requests of open pages, sent by a separate process to keep the load generator undisturbed."""

    def __init__(self, ready_line: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._is_ready, self._is_shown = context.Event(), context.Event()
        bases = [word.rstrip(",") for word in ready_line.split() if word.startswith("http://")]
        self._process = context.Process(target=_look, args=(*bases, self._is_ready, self._is_shown)) if bases else None

    def __enter__(self) -> Tabs:
        if self._process is not None:
            self._process.start()
            self._is_ready.wait()
        return self

    def show(self) -> None:
        self._is_shown.set()

    def hide(self) -> None:
        self._is_shown.clear()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _look(base: str, is_ready: Event, is_shown: Event) -> None:
    is_ready.set()
    due = dict.fromkeys(TABS, 0.0)
    while True:
        is_shown.wait()
        for tab, at_s in due.items():
            if time.monotonic() >= at_s:
                fetch(base, tab[0])
                due[tab] = time.monotonic() + tab[1]
        time.sleep(0.05)


def fetch(base: str, path: str, method: str = "GET", body: object = None) -> bytes:
    connection = HTTPConnection(urlsplit(base).netloc, timeout=300)
    headers = {"authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}", "content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.status < 300, content
    return content


def measure_listing(rounds: int) -> None:
    """Measure the time and size of answers with 10,000 queues."""
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
    """Measure the longest pause of a page's event loop while it loads and refreshes, with 1,000 queues."""
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
