"""holtmq pipeline: all commands in turn on the same messages."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holtmq.spark
from holtmq import Binding, Exchange, Queue, Topology
from holtmq.cli.main import main
from holtmq.cli.pipeline_commands import show_comparison
from holtmq.cli.spark_progress import SparkProgress, describe_metrics, describe_rows
from holtmq.cli.spark_run import summarise_spark_error
from holtmq.client.http_api import HttpApi
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.remote_stream import RemoteStream
from holtmq.spark.amqp.stream_metrics import StreamMetrics
from holtmq.spark.comparison import Comparison, KeyChange, QueueChange, Refusal
from tests.amqp_client import Amqp
from tests.deadline import eventually
from tests.peers.rabbitmq import RabbitMQ
from tests.server.process import broker_process

MESSAGES = 200
BROKER = "amqp://127.0.0.1:1"


Run = Callable[..., str]


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run commands in the session of the tests, which they must not stop. Return what they print."""

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["pipeline", *arguments]) == code
        printed = capsys.readouterr()
        assert (printed.err == "") == (code in (0, 3)), printed.err
        return printed.out + printed.err

    return run


def definitions(path: Path, *bindings: Binding) -> str:
    topology = Topology((Exchange("orders", "topic"),), (Queue("food"), Queue("all")), bindings)
    path.write_text(json.dumps(topology.to_definitions()))
    return str(path)


def test_a_queue_is_archived_reported_compared_routed_and_replayed(run: Run, tmp_path: Path) -> None:
    food, everything = Binding("orders", "food", "orders.food"), Binding("orders", "all", "orders.#")
    before, after = definitions(tmp_path / "before.json", food, everything), definitions(tmp_path / "after.json", everything)
    stored, password = str(tmp_path / "archive"), tmp_path / "password"
    password.write_text("guest\n")
    with broker_process(tmp_path / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare_exchange("orders", "topic", durable=True)
            channel.declare("all", durable=True)
            channel.bind("all", "orders", "#")
            for n in range(MESSAGES):
                channel.publish("orders", "orders.food" if n % 4 == 0 else "orders.toys", b"%d" % n, delivery_mode=2)
            channel.settle()
        url = f"amqp://127.0.0.1:{broker.port}"
        printed = run(
            "archive", "all", stored, "--amqp-url", url, "--user", "guest", "--password-file", str(password), "--json"
        )
        summary = json.loads(printed)
        assert (summary["messages"], summary["received"], summary["redelivered"]) == (MESSAGES, MESSAGES, 0)
        assert summary["lag"] == 0

        page = tmp_path / "report.html"
        printed = run("report", stored, "--definitions", before, "--html", str(page), "--title", "Orders", "--json")
        assert json.loads(printed)["deliveries"] == 250
        assert "<title>Orders" in page.read_text()

        compared = ("compare", stored, "--before", before, "--after", after)
        assert json.loads(run(*compared, "--fail-above", "10", "--json", code=3))["share"] == 0.25
        printed = run(*compared, "--vhost", "elsewhere", code=1)
        assert "both topologies refuse all 200 messages, so nothing was compared" in printed

        printed = run("route", stored, str(tmp_path / "routed"), "--definitions", before, "--partition-by", "queue", "--json")
        assert json.loads(printed)["deliveries"] == 250
        assert (tmp_path / "routed" / "queue=food").is_dir()
        printed = run("route", str(tmp_path / "no such"), str(tmp_path / "x"), "--definitions", before, code=1)
        assert printed.startswith("holtmq: ")
        assert "no such" in printed
        assert len(printed.splitlines()) == 1
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "a.parquet").write_bytes(b"")
        printed = run("route", str(tmp_path / "broken"), str(tmp_path / "x"), "--definitions", before, code=1)
        assert printed.startswith("holtmq: ")
        assert len(printed.splitlines()) == 1

        assert "confirmed" in run("replay", stored, "--amqp-url", url, "--key", "orders.food", "--rate", "1000")
        with Amqp(broker.port) as amqp:
            assert amqp.channel().count("all") == 50
        run("archive", "all", str(tmp_path / "table"), "--amqp-url", url, "--user", "guest", "--format", "delta")
        printed = run(
            "route", str(tmp_path / "table"), str(tmp_path / "r"), "--definitions", before, "--format", "delta", "--json"
        )
        assert json.loads(printed)["deliveries"] == 100
        printed = run("replay", str(tmp_path / "table"), "--amqp-url", url, "--format", "delta", "--exact", "--json")
        assert json.loads(printed)["confirmed"] == 50
        with Amqp(broker.port) as amqp:
            amqp.channel(2).delete("all")
        printed = run("replay", stored, "--url", url, "--key", "orders.food", code=1)  # the old name of --amqp-url
        assert "50 of 50 messages reached no queue (the first: NO_ROUTE at exchange 'orders' with key 'orders.food')" in printed


@pytest.mark.rabbitmq
def test_a_stream_queue_is_replayed_without_an_archive(run: Run, rabbitmq: RabbitMQ) -> None:
    with Amqp(rabbitmq.amqp_port) as amqp:
        channel = amqp.channel()
        channel.declare("history", durable=True, queue_type="stream")
        channel.confirm()
        for _ in range(20):
            channel.publish("", "history")
        confirmed = 0
        while confirmed < 20:
            confirmed = max(confirmed, channel.next().method.delivery_tag)
        stream = (rabbitmq.url, "--queue", "history", "--from", "24h", "--to", "16")
        printed = run("replay", *stream, "--amqp-url", rabbitmq.url, "--exact", "--json")
        assert json.loads(printed)["confirmed"] == 16
        positions = RemoteStream(BrokerOptions(url=rabbitmq.url), "history")
        assert positions.end() == 36
        positions.close()
        channel.delete("history")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((BROKER,), "name its stream queues with --queue or --queue-pattern, got neither"),
        ((BROKER, "--queue", "q", "--queue-pattern", "q.*"), "with --queue or --queue-pattern, got both"),
        (("folder", "--from", "24h"), "--from is for stream queues: SOURCE must be the AMQP URL of a broker"),
        (("folder", "--queue", "q"), "--queue is for stream queues: SOURCE must be the AMQP URL of a broker"),
        (("folder", "--queue-pattern", "q.*"), "--queue-pattern is for stream queues"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    assert main(["pipeline", "report", *arguments, "--definitions", definitions(tmp_path / "x.json")]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("replay", BROKER, "--queue", "q", "--since", "2026-10-01"), "for stream queues, use --from and --to"),
        (("replay", "folder", "--queue-pattern", "q.*"), "--queue-pattern is for stream queues"),
        (("archive", "out"), "name the queues to archive before TARGET, or with --queue-pattern, got neither"),
        (("archive", "q", "out", "--queue-pattern", "q.*"), "or with --queue-pattern, got both"),
        (("archive", "q", "out", "--allow-data-loss"), "--allow-data-loss is for stream queues: say where to start"),
        (("replay", "folder", "--allow-data-loss"), "--allow-data-loss is for stream queues: SOURCE must be the AMQP URL"),
    ],
)
def test_queues_that_are_named_wrongly_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert main(["pipeline", *arguments, "--amqp-url", BROKER]) == 2
    assert expected in capsys.readouterr().err


LOGIN_REFUSED = "Login was refused: unknown user or wrong password"
NOTHING_AT = "no broker at amqp://127.0.0.1:1/%2F: [Errno 111] Connection refused"
NO_FILES = "SOURCE contains no files with messages: expected at least one file in the format that --format names"

NO_DELTA = "the format delta need Delta Lake in Spark, which this session does not have"


@pytest.fixture(scope="module")
def inputs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Some messages, a folder without files, a file without messages, a definitions file, and a broker."""
    folder = tmp_path_factory.mktemp("inputs")
    places = {name: str(folder / name) for name in ("some", "no files", "no messages", "out", "archive", "routed")}
    messages = spark.sql("SELECT '' AS exchange, 'inbox' AS routing_key, 'body' AS body FROM range(300)")
    messages.write.parquet(places["some"])
    messages.where("false").write.parquet(places["no messages"])
    Path(places["no files"]).mkdir()
    places["broken"] = str(folder / "broken.json")
    Path(places["broken"]).write_text("{")
    return {**places, "definitions": definitions(folder / "definitions.json")}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_process(tmp_path_factory.mktemp("broker") / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("inbox", durable=True)
            amqp.channel(2).declare("empty", durable=True)
            amqp.channel(3).declare("log", durable=True, queue_type="stream")
        yield f"amqp://127.0.0.1:{broker.port}"


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("archive inbox {out} --amqp-url amqp://127.0.0.1:1", 1, NOTHING_AT),
        ("replay {some} --amqp-url amqp://127.0.0.1:1", 1, NOTHING_AT),
        ("replay amqp://127.0.0.1:1 --queue log --amqp-url {url}", 1, NOTHING_AT),
        ("report amqp://127.0.0.1:1 --queue log --definitions {definitions}", 1, NOTHING_AT),
        ("compare amqp://127.0.0.1:1 --queue log --before {definitions} --after {definitions}", 1, NOTHING_AT),
        ("archive inbox {out} --amqp-url {wrong}", 1, LOGIN_REFUSED),
        ("replay {some} --amqp-url {wrong}", 1, LOGIN_REFUSED),
        ("replay {wrong} --queue log --amqp-url {url}", 1, LOGIN_REFUSED),
        ("report {wrong} --queue log --definitions {definitions}", 1, LOGIN_REFUSED),
        ("compare {wrong} --queue log --before {definitions} --after {definitions}", 1, LOGIN_REFUSED),
        ("archive nowhere {out} --amqp-url {url}", 1, "NOT_FOUND - no queue 'nowhere' in vhost '/'"),
        ("archive empty {archive} --amqp-url {url}", 0, "There were no messages."),
        ("route {no_files} {out} --definitions {definitions}", 1, NO_FILES),
        ("route {some} {out} --definitions {definitions} --target-format delta", 1, f"deliveries in {NO_DELTA}: write parquet"),
        ("route {some} {out} --definitions {definitions} --format delta --option a=b", 1, f"options for {NO_DELTA}: leave"),
        ("report {some} --definitions {definitions} --format delta", 1, "deltalake cannot read a Delta table at "),
        ("compare {no_files} --before {definitions} --after {definitions}", 1, NO_FILES),
        ("report {no_files} --definitions {definitions}", 1, NO_FILES),
        (
            "report {some} --definitions {definitions} --html {out}/nowhere/x.html",
            1,
            "for the report does not exist: create it first",
        ),
        ("compare {some} --before {definitions} --after {broken}", 1, "broken.json: document: expected JSON, got line 1"),
        ("report {some} --definitions {definitions} --key-column x", 1, "commands have the options --key-column"),
        ("replay {no_files} --amqp-url {url}", 1, NO_FILES),
        ("route {no_messages} {routed} --definitions {definitions}", 0, "There were no messages."),
        ("compare {no_messages} --before {definitions} --after {definitions}", 1, "no messages: nothing was compared"),
        ("report {no_messages} --definitions {definitions}", 0, "0 messages, 0 deliveries"),
        ("replay {no_messages} --amqp-url {url}", 0, "There were no messages."),
        (
            "replay {some} --queue q --amqp-url {url}",
            1,
            "queue needs a column source_queue, found the columns exchange, routing",
        ),
        ("replay {url} --queue log --amqp-url {url}", 0, "There were no messages."),
        ("report {url} --queue log --definitions {definitions}", 0, "0 messages, 0 deliveries"),
    ],
)
def test_a_command_says_what_happened(
    run: Run, inputs: dict[str, str], url: str, command: str, code: int, sentence: str
) -> None:
    wrong = url.replace("//", "//guest:wrong@")
    places = {name.replace(" ", "_"): place for name, place in inputs.items()}
    arguments = [part.format(url=url, wrong=wrong, **places) for part in command.split()]
    printed = run(*arguments, code=code)
    assert sentence in printed
    assert code == 0 or len(printed.splitlines()) == 1


def test_a_report_takes_its_topology_from_a_file_or_a_database(run: Run, inputs: dict[str, str], durable_place: str) -> None:
    with holtmq.open(durable_place) as mq:
        mq.declare_queue("inbox")
    printed = run("report", inputs["some"], "--data", durable_place, "--json")
    assert json.loads(printed)["deliveries"] == 300


def test_a_job_fails_if_the_topology_refuses_all_messages(run: Run, inputs: dict[str, str], tmp_path: Path) -> None:
    """As with a wrong column. The results are written all the same, and say why."""
    options = ("--definitions", inputs["definitions"], "--exchange-column", "body", "--json")
    out = tmp_path / "out"
    printed = run("route", inputs["some"], str(out), *options, code=1)
    assert f"the topology refuses all 300 messages. The column reason in {out} says why. Check the virtual host" in printed
    assert '"malformed": 300' in printed
    printed = run("report", inputs["some"], *options, code=1)
    assert "refuses all 300 messages. The most frequent reason (300 messages): no exchange 'body'" in printed


@pytest.mark.parametrize("unroutable", ["keep", "drop", "only"])
def test_a_route_job_fails_if_no_message_reaches_a_queue(
    run: Run, inputs: dict[str, str], tmp_path: Path, unroutable: str
) -> None:
    """The default exchange of a virtual host that does not exist accepts every message."""
    options = ("--definitions", inputs["definitions"], "--vhost", "elsewhere", "--unroutable", unroutable)
    printed = run("route", inputs["some"], str(tmp_path / "out"), *options, code=1)
    assert "none of the 300 messages reaches a queue. Check the virtual host" in printed


def test_a_report_and_a_comparison_fail_if_no_message_reaches_a_queue(run: Run, inputs: dict[str, str]) -> None:
    place = ("--vhost", "elsewhere")
    printed = run("report", inputs["some"], "--definitions", inputs["definitions"], *place, code=1)
    assert "none of the 300 messages reaches a queue. Check the virtual host" in printed
    both = ("--before", inputs["definitions"], "--after", inputs["definitions"])
    printed = run("compare", inputs["some"], *both, *place, code=1)
    assert "none of the 300 messages reaches a queue with either topology, so nothing was compared" in printed


@pytest.mark.parametrize(
    ("command", "job", "sentence"),
    [
        (
            "route {some} {out} --definitions {definitions}",
            "route_job",
            "are missing or incomplete. Run the job again with --mode",
        ),
        ("compare {some} --before {definitions} --after {definitions}", "compare", "interrupted: nothing was written"),
        ("report {some} --definitions {definitions}", "report", "interrupted: nothing was written"),
        (
            "archive empty {out} --amqp-url {url}",
            "archive",
            "still in the queue or in the spool. Run the job again to continue",
        ),
    ],
)
def test_an_interrupted_job_says_what_it_left(
    run: Run, inputs: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch, command: str, job: str, sentence: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(holtmq.spark, job, interrupt)
    printed = run(*(part.format(url=url, **inputs) for part in command.split()), code=130)
    assert sentence in printed
    assert len(printed.splitlines()) == 1


def test_a_signal_interrupts_a_job_that_runs(
    run: Run, spark: SparkSession, inputs: dict[str, str], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At this rate the job takes minutes, so the signal comes while it runs."""

    def interrupt() -> None:
        with Amqp(int(url.rpartition(":")[2])) as amqp:
            channel = amqp.channel()
            eventually(lambda: channel.count("inbox") > 0, "a published message")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    printed = run("replay", inputs["some"], "--amqp-url", url, "--rate", "1", code=130)
    thread.join()
    assert caplog.text == ""  # a command would print it
    assert "interrupted: a part of the messages may be published. Their header x-holtmq-replay is " in printed
    assert len(printed.splitlines()) == 1
    run("report", inputs["some"], "--definitions", inputs["definitions"], code=1)
    assert spark.range(3).count() == 3  # the next command did not take the session for its own, and stop it


def test_an_archive_that_follows_ends_well_with_a_signal(run: Run, url: str, tmp_path: Path) -> None:
    port, target = int(url.rpartition(":")[2]), tmp_path / "archive"
    with Amqp(port) as amqp:
        channel = amqp.channel()
        channel.declare("followed", durable=True)
        channel.put("followed", b"m")

    def interrupt() -> None:
        eventually(lambda: any(target.glob("date=*/*.parquet")), "a file in the archive")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    printed = run("archive", "followed", str(target), "--amqp-url", url, "--follow", "--interval", "1 second", "--json")
    thread.join()
    assert json.loads(printed)["messages"] == 1


@pytest.mark.parametrize(("signals", "sessions"), [(1, 1), (2, 0)])
def test_a_signal_while_spark_starts_waits_for_it_unless_it_comes_again(
    run: Run, spark: SparkSession, inputs: dict[str, str], monkeypatch: pytest.MonkeyPatch, signals: int, sessions: int
) -> None:
    """A Java that is interrupted in its start would stay."""
    started = []

    def start(*_: object, **__: object) -> SparkSession:
        for _signal in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
        started.append(spark)
        return spark

    monkeypatch.setattr(holtmq.spark, "session", start)
    assert "interrupted: nothing was written" in run("report", inputs["some"], "--definitions", inputs["definitions"], code=130)
    assert len(started) == sessions


def test_progress_shows_rows_and_rate(spark: SparkSession, inputs: dict[str, str]) -> None:
    with SparkProgress(spark, "count") as progress:
        for column in ("routing_key", "body", "exchange"):
            spark.read.parquet(inputs["some"]).groupBy(column).count().collect()
            spark.read.parquet(inputs["some"]).orderBy(column).cache().count()

            eventually(lambda: progress.read_rows() == 300, "rows that are read again do not count again")
        assert progress.text.startswith("300 rows, ")
        counted = progress.accumulator()
        assert counted is not None
        counted.add(1000)
        progress.refresh()
        assert progress.text.startswith("1,000 rows, ")
        progress.count(2000)
    assert describe_rows(2_000_000, 4.0) == "2,000,000 rows, 500,000/s"
    assert describe_rows(0, 4.0) == ""
    unknown, known = StreamMetrics(None, 5, 0, 0, None), StreamMetrics(30_000, 2_000, 1_500, 3, 1_240)
    assert describe_metrics(known) == "lag 30,000, 2,000 received, 1,500 acknowledged, 3 redelivered, oldest 1.2 s"
    assert describe_metrics(unknown) == "5 received, 0 acknowledged, 0 redelivered"


def test_progress_shows_the_metrics_of_a_stream(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with Amqp(int(url.rpartition(":")[2])) as amqp:
        amqp.channel().declare("streamed", durable=True)
        amqp.channel(2).put("streamed", *[b"m"] * 20)
    shown: list[str] = []
    with SparkProgress(spark, "archive") as progress:

        def look(messages: int) -> None:
            progress.count(messages)
            if messages == 20:
                progress.refresh()
                shown.append(progress.text)

        archive = holtmq.spark.archive
        archive(spark, "streamed", str(tmp_path), url=url, max_messages_per_trigger=15, segment_rows=5, progress=look)
        progress.refresh()
        assert progress.text.startswith("20 rows, ")
        assert ", 20 received, 20 acknowledged, 0 redelivered" in progress.text  # although Spark has no stream any more
    assert re.search(r"\nlag 20, \d+ received, 15 acknowledged, 0 redelivered, oldest [0-9.]+ s$", shown[0])


def test_rows_that_are_read_from_a_broker_are_shown(spark: SparkSession, url: str) -> None:
    with Amqp(int(url.rpartition(":")[2])) as amqp:
        amqp.channel().declare("history", durable=True, queue_type="stream")
        amqp.channel(2).put("history", *[b"m"] * 20)
        amqp.channel(3).settle()
    rows = spark.read.format("amqp").options(url=url, queue="history", startingOffsets="earliest").load()
    with SparkProgress(spark, "report") as progress:
        rows.groupBy("routing_key").count().collect()
        rows.groupBy("body").count().collect()
        eventually(lambda: progress.read_rows() == 20, "the messages that the broker delivered")


@pytest.mark.parametrize("announce", [(), ("--no-announce",)])
def test_a_command_is_listed_by_the_broker_that_it_uses(
    run: Run, inputs: dict[str, str], tmp_path: Path, announce: tuple[str, ...]
) -> None:
    with broker_process(tmp_path / "broker.db", "--http-port", "0") as broker:
        url = f"amqp://127.0.0.1:{broker.port}"
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("s", durable=True, queue_type="stream")
            amqp.channel(2).put("s", *[b"m"] * 3)
            amqp.channel(3).settle()
        run("replay", inputs["no messages"], "--amqp-url", url, *announce)
        run("archive", "s", str(tmp_path / "out"), "--from", "earliest", "--amqp-url", url, *announce)
        run("report", url, "--queue", "s", "--definitions", inputs["definitions"], *announce, code=1)  # none is routed
        found = HttpApi(f"http://127.0.0.1:{broker.http_port}", "guest", "guest").get("runs")
    expected = [] if announce else ["archive", "replay", "report"]
    assert sorted(run["job"] for run in found if run["state"] == "finished") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["route", "in", "out"], "expected exactly one of --definitions and --data"),
        (["compare", "in", "--before", "/no/such", "--after", "/no/such"], "/no/such: No such file or directory"),
        (["archive", "q", "out"], "Missing option '--amqp-url'"),
        (["replay", "in", "--amqp-url", "amqp://x", "--since", "yesterday"], "'yesterday' does not match"),
        (["report", "in", "--definitions", "/no/such"], "/no/such: No such file or directory"),
        (["archive", "q", "out", "--amqp-url", "amqp://bob@127.0.0.1:1"], "no password for user 'bob'"),
        (["replay", "in", "--amqp-url", "amqp://127.0.0.1:1", "--user", "bob"], "no password for user 'bob'"),
        (["replay", "in", "--amqp-url", "http://bob:hush@127.0.0.1:1"], "got 'http://127.0.0.1:1'"),
    ],
)
def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["pipeline", *arguments]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_without_spark_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = definitions(tmp_path / "d.json")
    monkeypatch.setitem(sys.modules, "holtmq.spark", None)
    assert main(["pipeline", "report", "in", "--definitions", file]) == 1
    assert "the pipeline needs Spark: pip install 'holtmq[spark]'" in capsys.readouterr().err


def test_an_error_of_spark_is_reduced_to_the_line_with_the_cause() -> None:
    traceback = (
        "[PYTHON_EXCEPTION] An exception\n  File x\nholtmq.client.connection.RefusedError: no queue 'q'\n SQLSTATE: 38000"
    )
    assert summarise_spark_error(traceback) == "no queue 'q'"
    assert summarise_spark_error("\n[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03") == (
        "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03"
    )
    assert summarise_spark_error("java.io.IOException: mkdir of file:/x failed\n\tat x") == "mkdir of file:/x failed"


def test_a_comparison_shows_what_changes_and_what_both_topologies_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(("gaining", "newly_unroutable", "newly_routable", "newly_refused"), 0)
    show_comparison(
        Comparison(
            messages=200, affected=50, losing=50, still_unroutable=2, still_refused=7, **nothing, keys_affected=1,
            queues=(QueueChange("food", 50, 0, 0, 50),),
            keys=(KeyChange("orders", "orders.food", 50, ("all", "food"), ("all",)),),
            refusals=(Refusal("the routing key is null", 7),),
        )
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert "50 of 200 messages (25.0 %) would reach other queues; 1 routing key." in shown
    assert "−food (1 unchanged)" in shown
    assert "50 lose a queue   2 still reach no queue   7 are refused by both topologies" in shown
    assert "Refused by both:\n  the routing key is null (7)" in shown


def test_help_shows_the_new_name_of_the_broker_option_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "archive", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--amqp-url URL" in shown
    assert "--url" not in shown.replace("--amqp-url", "")
