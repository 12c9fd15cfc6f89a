"""holtmq demo: run every part of the system once, and end with a summary."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path
from random import choice
from tempfile import TemporaryDirectory
from threading import Semaphore
from typing import TYPE_CHECKING

import click
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from holtmq.cli.demo_failover import survive_a_kill
from holtmq.cli.explanation_view import explanation_view
from holtmq.cli.output import show
from holtmq.client.address import Address
from holtmq.client.blocking_connection import BlockingConnection
from holtmq.client.publisher import Outgoing, Publisher
from holtmq.embedded import EmbeddedBroker
from holtmq.routing import Router
from holtmq.routing.check import check
from holtmq.routing.explanation_text import count as plural
from holtmq.testing import running_broker
from holtmq.topology import Binding, Exchange, Queue, Topology
from holtmq.wire.content import encode_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 200_000
SENT = 500
EVENTS = 5_000
PUBLISHED = 300
ORDERS = 20_000
LATE_ORDERS = 1_000
KINDS = "array('food', 'food', 'toys.lego', 'books', 'electronics.laptops.basic', 'electronics.laptops.premium')"
A_DAY_OF_ORDERS = (
    "'orders' as exchange",
    f"if(id % 211 = 0, 'order.food', concat('orders.', {KINDS}[cast(pmod(xxhash64(id), 6) as int)])) as routing_key",
    "if(id % 9 = 0, '{\"vip\": true}', null) as headers",
    "concat('order ', id, repeat('.', cast(pmod(xxhash64(id, 1), 300) as int))) as body",
    "concat('m-', id) as message_id",
    # The sum of two random numbers, over the 86,400 seconds of a day: most orders come around noon.
    "timestamp_seconds(1767225600 + pmod(xxhash64(id, 2), 43200) + pmod(xxhash64(id, 3), 43200)) as timestamp",
)
"""Spark SQL expressions over the column `id`."""


@click.command()
@click.option(
    "--folder",
    default="demo",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the report.",
)
@click.option(
    "--pages/--no-pages",
    default=None,
    help="Keep a broker with its web UI running at the end.  [default: only in a terminal, and not in CI]",
)
@click.option("--spark/--no-spark", default=True, help="Run the Spark pipeline, which takes half a minute.")
def demo(folder: Path, *, pages: bool | None, spark: bool) -> None:
    """Run the whole system once: routing, the embedded queue, the broker and the Spark pipeline."""
    topology = shop()
    router = Router(topology)

    show(Rule("Why does this message go there?", align="left"))
    show(explanation_view(router.explain("orders", "orders.electronics.laptops.premium", {"vip": True})))
    show(Rule("Why does this message not arrive?", align="left"))
    show(explanation_view(router.explain("orders", "order.food", {})))

    show(Rule("Problems in this topology", align="left"))
    findings = check(topology)
    for finding in findings:
        show(Text(f"{finding.level}: {finding.subject}: {finding.message}"))

    show(Rule("A durable queue in one file", align="left"))
    consumed = _use_a_file(topology)
    show(Rule("A stream: read by many, and read again", align="left"))
    appended = _use_a_stream()
    show(Rule("A broker, used with pika", align="left"))
    served = _use_a_broker()
    show(Rule("A broker and its standby on PostgreSQL", align="left"))
    kept = survive_a_kill()
    show(Rule("Routing throughput, with a pickled copy of the router", align="left"))
    _route_traffic(pickle.loads(pickle.dumps(router)))
    archived = 0
    if spark:
        show(Rule("The same topology on Spark: publish, archive, copy a stream once, compare, report", align="left"))
        archived = _use_spark(topology, folder)
    show(
        f"\nSummary: {len(topology.exchanges)} exchanges, {len(topology.queues)} queues, {len(topology.bindings)} bindings, "
        f"{plural(len(findings), 'problem')}, {kept:,} messages kept by a standby;\n"
        f"{consumed} messages in the embedded queue, {appended:,} in a stream, {served} in the broker, {MESSAGES:,} routed, "
        f"{archived:,} archived."
    )
    if pages if pages is not None else sys.stdin.isatty() and sys.stdout.isatty() and "CI" not in os.environ:
        _leave_pages_open(topology, folder)


def shop() -> Topology:
    """Return the topology of a small shop: orders by category, an audit log, a VIP desk, and a queue for unrouted orders."""
    orders = Exchange("orders", "topic", arguments={"alternate-exchange": "unclaimed"})
    exchanges = (orders, Exchange("audit", "fanout"), Exchange("desks", "headers"), Exchange("unclaimed", "fanout"))
    queues = (
        Queue("laptops"),
        Queue("food"),
        Queue("premium", arguments={"x-max-priority": 9}),
        Queue("audit-log"),
        Queue("vip-desk"),
        Queue("lost-and-found"),
    )
    bindings = (
        Binding("orders", "laptops", "orders.*.laptops.#"),
        Binding("orders", "laptops", "orders.electronics.laptops.premium"),
        Binding("orders", "food", "orders.food"),
        Binding("orders", "premium", "orders.#.premium", {"x-priority": 9}),
        Binding("orders", "audit", "#", destination_type="exchange"),
        Binding("orders", "desks", "orders.#", destination_type="exchange"),
        Binding("audit", "audit-log"),
        Binding("audit", "orders", destination_type="exchange"),
        Binding("desks", "vip-desk", "", {"x-match": "all", "vip": True}),
        Binding("unclaimed", "lost-and-found"),
    )
    return Topology(exchanges, queues, bindings)


def _use_a_file(topology: Topology) -> int:
    """Publish through the exchanges of the shop into a file, then use a producer and a consumer."""
    with TemporaryDirectory(prefix="holtmq-demo-") as folder, EmbeddedBroker(Path(folder) / "shop.db") as mq:
        for exchange in topology.exchanges:
            mq.declare_exchange(exchange.name, exchange.type, arguments=exchange.arguments)
        for queue in topology.queues:
            mq.declare_queue(queue.name, arguments=queue.arguments)
        for b in topology.bindings:
            mq.bind(b.destination, b.source, b.routing_key, arguments=b.arguments, destination_type=b.destination_type)
        mq.publish("one laptop, please", "orders.electronics.laptops.premium", exchange="orders", headers={"vip": True})
        message = mq.queue("premium").pop("orders.#.premium")
        assert message is not None
        show(f"Message popped with the pattern orders.#.premium: {message.text!r}, priority {message.priority}")
        message.ack()

        remaining = Semaphore(0)
        producer, consumer = mq.producer("inbox"), mq.consumer("inbox", concurrency=2)
        consumer.on_message("orders.#", lambda _: remaining.release())
        started = time.perf_counter()
        for n in range(SENT):
            producer.send(f"order {n}", ["orders", "food", str(n % 10)])
        for _ in range(SENT):
            remaining.acquire()
        elapsed_s = time.perf_counter() - started
        show(
            f"{SENT:,} messages sent, delivered to callbacks and acknowledged in {elapsed_s:.2f} s, each on disk when confirmed"
        )
    return SENT + 1


def _use_a_stream() -> int:
    """Append events to a stream, follow it under two names, and go back to an earlier offset."""
    with TemporaryDirectory(prefix="holtmq-demo-") as folder, EmbeddedBroker(Path(folder) / "shop.db") as mq:
        events = mq.declare_stream("events", max_age_s=7 * 24 * 3600)
        offsets = events.append_many([(f"order {n}", ("orders.food", "orders.toys")[n % 2]) for n in range(EVENTS)])
        billed = sum(1 for _ in events.follow("billing", wait_s=0))
        toys = sum(1 for _ in events.follow("toy-shop", "orders.toys", wait_s=0))
        show(f"{len(offsets):,} events appended; billing has read {billed:,} of them, the toy shop its {toys:,}")
        events.seek("billing", EVENTS - 100)
        again = [event.offset for event in events.follow("billing", wait_s=0)]
        show(f"Billing went back and read offsets {again[0]:,} to {again[-1]:,} again; its position is {again[-1] + 1:,}")
    return EVENTS


def _use_a_broker() -> int:
    """Use a broker through pika: publish with confirms, consume, and reject a message into a dead-letter queue."""
    try:
        import pika
    except ImportError:
        show("Skipped: pika is not installed (pip install pika)")
        return 0
    with TemporaryDirectory(prefix="holtmq-demo-") as folder, running_broker(Path(folder) / "shop.db") as broker:
        started = time.perf_counter()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("dead", durable=True)
            dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            channel.queue_declare("work", durable=True, arguments=dead_letters)
            for n in range(PUBLISHED):
                channel.basic_publish("", "work", f"order {n}".encode(), pika.BasicProperties(delivery_mode=2))
            for method, _, _ in channel.consume("work"):
                if method.delivery_tag == PUBLISHED:
                    channel.basic_reject(method.delivery_tag, requeue=False)
                    break
                channel.basic_ack(method.delivery_tag)
            channel.cancel()
            _, properties, body = channel.basic_get("dead", auto_ack=True)
        elapsed_s = time.perf_counter() - started
        reason = properties.headers["x-death"][0]["reason"]
        show(f"pika on {broker.url}: {PUBLISHED} messages published, confirmed one by one and consumed in {elapsed_s:.2f} s")
        show(f"The last one, {body.decode()!r}, was rejected and dead-lettered (reason: {reason})")
    return PUBLISHED


def _use_spark(topology: Topology, folder: Path) -> int:
    """Publish a day of orders, archive them, copy a stream, compare two topologies over the archive, and write a report."""
    try:
        from holtmq.cli.pipeline_commands import show_comparison
        from holtmq.spark import archive, compare, publish, report, session
    except ImportError:
        show("Skipped: Spark is not installed (pip install 'holtmq[spark]')")
        return 0
    spark = session("local[2]", app_name="holtmq demo")
    with TemporaryDirectory(prefix="holtmq-demo-") as name:
        definitions, stored = Path(name) / "shop.json", str(Path(name) / "archive")
        definitions.write_text(json.dumps(_with_history(topology).to_definitions()))
        with running_broker(Path(name) / "shop.db", definitions=str(definitions)) as broker:
            published = publish(spark.range(ORDERS).selectExpr(*A_DAY_OF_ORDERS), url=broker.url)
            summary = archive(spark, "audit-log", stored, url=broker.url)
            show(f"{published.confirmed:,} orders published and confirmed, {summary.messages:,} archived from queue audit-log")
            _copy_stream(spark, broker.url, Path(name))
            publish(spark.range(LATE_ORDERS).selectExpr(*A_DAY_OF_ORDERS), url=broker.url)
            copied = _copy_stream(spark, broker.url, Path(name))
        offsets = copied.select("offset").distinct().count()
        show(f"Stream history copied to Parquet by two runs of a query: {copied.count():,} rows, {offsets:,} different offsets")
        orders = spark.read.parquet(stored)
        changed = Topology(topology.exchanges, topology.queues, (*topology.bindings[:2], *topology.bindings[3:]))
        show("Effect of removing the binding orders.food:")
        show_comparison(compare(orders, topology, changed))
        folder.mkdir(parents=True, exist_ok=True)
        report(orders, topology, title="A day at the shop").write_html(folder / "report.html")
    spark.stop()
    show(f"Report: {folder / 'report.html'}")
    return summary.messages


def _with_history(topology: Topology) -> Topology:
    """Add a stream of all orders to the shop."""
    history = Queue("history", arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    return Topology(topology.exchanges, (*topology.queues, history), (*topology.bindings, Binding("audit", "history")))


def _copy_stream(spark: SparkSession, url: str, folder: Path) -> DataFrame:
    """Copy what is new in the stream. The checkpoint has the offset to continue from, so nothing is copied twice."""
    new = spark.readStream.format("amqp").options(url=url, queue="history", startingOffsets="earliest").load()
    writer = new.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "history")).awaitTermination()
    return spark.read.parquet(str(folder / "history"))


def _leave_pages_open(topology: Topology, folder: Path) -> None:
    """Run a broker with the shop and some traffic until the user interrupts it."""
    from holtmq.config import Config
    from holtmq.server.run import running

    with TemporaryDirectory(prefix="holtmq-demo-") as name:
        definitions = Path(name) / "shop.json"
        definitions.write_text(json.dumps(topology.to_definitions()))
        config = Config(
            str(Path(name) / "shop.db"), amqp_port=0, http_port=0, definitions=str(definitions), reports=str(folder)
        )
        with running(config) as server:
            if server.http_address is None:
                show("Skipped: the web UI is not installed (pip install 'holtmq[management]')")
                return
            show(Rule("Web UI", align="left"))
            show(f"Open {server.http_address} (user guest, password guest). Press Ctrl-C to stop.")
            _publish_until_interrupted(server.address)


def _publish_until_interrupted(address: str) -> None:
    where = Address.parse(f"{address.replace('://', '://guest:guest@')}/%2F")
    publisher = Publisher(lambda: BlockingConnection(where, name="the shop"))
    keys = ("orders.food", "orders.toys.lego", "orders.electronics.laptops.premium", "order.food")
    raw = encode_properties({"headers": {"vip": True}, "content_type": "text/plain"})
    try:
        for number in count():
            orders = (Outgoing("orders", choice(keys), raw, b"order %d" % number) for _ in range(1 + number % 7))
            publisher.publish(orders)
            publisher.flush()
            time.sleep(0.2)
    except KeyboardInterrupt:
        publisher.close()


def _route_traffic(router: Router) -> None:
    keys = [f"orders.{category}.{item}" for category in ("electronics", "food", "toys") for item in ("laptops", "premium")]
    started = time.perf_counter()
    deliveries = Counter(queue for n in range(MESSAGES) for queue in router.route("orders", keys[n % len(keys)]))
    elapsed_s = time.perf_counter() - started
    grid = Grid("queue", "messages")
    for queue, number in sorted(deliveries.items()):
        grid.add_row(queue, f"{number:,}")
    show(grid)
    show(f"{MESSAGES:,} messages, {sum(deliveries.values()):,} deliveries in {elapsed_s:.2f} s")
