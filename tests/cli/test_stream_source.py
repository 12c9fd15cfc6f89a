"""holtmq pipeline on the streams of a broker: all partitions of a super stream in one command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holtmq import Binding, Exchange, Queue, Topology
from holtmq.cli.broker_login import Login
from holtmq.cli.main import main
from holtmq.cli.message_source import MessageSource
from holtmq.client.publisher import Outgoing, Publisher
from holtmq.spark import read_archive
from holtmq.spark.amqp.amqp_options import BrokerOptions
from tests.amqp_client import Amqp
from tests.server.process import BrokerProcess, broker_process

PARTITIONS = ("events-0", "events-1")
MESSAGES = 40
Run = Callable[..., dict[str, object]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a super stream. A quarter of its messages has the key `orders.food.N`, the others `orders.toys.N`."""
    with broker_process(tmp_path_factory.mktemp("broker") / "broker.db", "--http-port", "0") as broker:
        url = f"http://127.0.0.1:{broker.http_port}"
        assert main(["declare", "super-stream", "events", "--partitions", "2", "--http-url", url]) == 0
        keys = [f"orders.{'toys' if number % 4 else 'food'}.{number}" for number in range(MESSAGES)]
        publish(broker.port, *(("events", key) for key in keys))
        yield broker


def publish(port: int, *messages: tuple[str, str]) -> None:
    """Publish to exchanges with keys, and wait for the confirms: a message is in its stream then."""
    publisher = Publisher(lambda: BrokerOptions(url=f"amqp://127.0.0.1:{port}").connect("test"))
    publisher.publish(Outgoing(exchange, key, bytes(2), b"m") for exchange, key in messages)
    publisher.flush()
    publisher.close()


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    return f"amqp://127.0.0.1:{broker.port}"


@pytest.fixture
def pattern(broker: BrokerProcess) -> tuple[str, ...]:
    """The options that name all partitions."""
    return "--queue-pattern", "events-[0-9]+", "--management-url", f"http://127.0.0.1:{broker.http_port}"


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run commands in the session of the tests. Return their summaries."""

    def run(*arguments: str, code: int = 0) -> dict[str, object]:
        assert main(["pipeline", *arguments, "--json"]) == code, capsys.readouterr().err
        return dict(json.loads(capsys.readouterr().out))

    return run


def definitions(path: Path, *keys: str) -> str:
    """Write a topology in which the exchange of the super stream leads to a queue."""
    bindings = tuple(Binding("events", "food", key) for key in keys)
    path.write_text(json.dumps(Topology((Exchange("events", "topic"),), (Queue("food"),), bindings).to_definitions()))
    return str(path)


def test_a_report_and_a_comparison_read_all_partitions(run: Run, url: str, pattern: tuple[str, ...], tmp_path: Path) -> None:
    everything, food = definitions(tmp_path / "all.json", "#"), definitions(tmp_path / "food.json", "orders.food.*")
    password = tmp_path / "password"
    password.write_text("guest\n")
    login = ("--user", "guest", "--password-file", str(password))
    report = run("report", url, *pattern, *login, "--from", "24h", "--definitions", food)
    assert (report["messages"], report["deliveries"]) == (MESSAGES, MESSAGES // 4)
    comparison = run("compare", url, *pattern, *login, "--before", everything, "--after", food, "--fail-above", "10", code=3)
    assert (comparison["messages"], comparison["losing"]) == (MESSAGES, MESSAGES * 3 // 4)
    part = run("report", url, "--queue", PARTITIONS[0], "--definitions", food)
    assert 0 < int(str(part["messages"])) < MESSAGES


@pytest.fixture
def planning_again(spark: SparkSession) -> Iterator[None]:
    """Let Spark plan a source again for each filter. Otherwise it keeps the first plan of a DataFrame, which is up to Spark."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("planning_again")
def test_a_source_is_the_same_messages_whenever_it_is_read(spark: SparkSession, broker: BrokerProcess, url: str) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("live", durable=True, queue_type="stream")
        publish(broker.port, ("", "live"))
        messages = MessageSource(url, "parquet", ("live",), start="24h").read(spark)
        for _ in range(2):
            assert messages.where("routing_key = 'live'").count() == 1
            publish(broker.port, ("", "live"))
        channel.delete("live")


def test_a_super_stream_is_archived_and_replayed(
    run: Run, spark: SparkSession, url: str, pattern: tuple[str, ...], tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    both = run("archive", *PARTITIONS, target, "--from", "earliest", "--amqp-url", url, "--format", "json", "--no-compact")
    assert both["messages"] == MESSAGES
    archived = read_archive(spark, target, format="json")
    assert sorted(row[0] for row in archived.select("source_queue").distinct().collect()) == [*PARTITIONS]
    every = tmp_path / "pattern"
    summary = run("archive", str(every), *pattern, "--from", "earliest", "--amqp-url", url, "--no-compact", "--format", "json")
    assert summary["messages"] == MESSAGES

    nowhere = ("--amqp-url", url, "--exchange", "", "--allow-unroutable")
    assert run("replay", url, "--queue", "events-0", "--queue", "events-1", *nowhere)["confirmed"] == MESSAGES
    assert run("replay", url, *pattern, "--key", "orders.food.*", *nowhere)["confirmed"] == MESSAGES // 4
    chosen = run("replay", target, "--format", "json", *(f"--queue={name}" for name in PARTITIONS), *nowhere)
    assert chosen["confirmed"] == MESSAGES


def test_the_password_of_a_job_is_for_its_own_broker_only() -> None:
    login = Login("bob", password_file="secret", ca_file="ca.pem")
    ours = "amqps://broker"
    assert login.for_source("amqps://broker:5671/other", ours, None) == login
    assert login.for_source("amqps://bob@broker", ours, None) == login
    of_url = Login(password_file="secret")
    for same in ("amqps://broker", "amqps://bob@broker"):
        assert of_url.for_source(same, "amqps://bob@broker", None) == Login("bob", password_file="secret")
    assert Login().for_source("amqps://broker", "amqps://bob:hush@broker", None) == Login()
    for other in ("amqps://elsewhere", "amqps://broker:5673", "amqps://alice@broker"):
        assert login.for_source(other, ours, None) == Login(ca_file="ca.pem")
    assert login.for_source("amqps://alice@elsewhere", ours, "theirs") == Login(password_file="theirs", ca_file="ca.pem")
