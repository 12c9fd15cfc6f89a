"""The holtmq command."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from holtmq import open as open_file
from holtmq.cli.demo_command import shop
from holtmq.cli.demo_failover import find_programs
from holtmq.cli.main import main
from holtmq.testing import TestBroker
from tests.deadline import PATIENCE_S
from tests.topology.record_exports import FOLDER


def holtmq(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which saves the time to start one."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main([str(word) for word in arguments])
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def holtmq_process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "holtmq", *arguments], capture_output=True, text=True, timeout=2 * PATIENCE_S)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.json"
    path.write_text(json.dumps(shop().to_definitions()))
    return path


def test_explain_prints_the_story(file: Path) -> None:
    done = holtmq_process("explain", "orders", "orders.food", "--header", "vip=true", "--definitions", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 queues: audit-log, food, vip-desk" in done.stdout
    assert "\x1b[" not in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_explain_prints_json(file: Path) -> None:
    done = holtmq("explain", "orders", "orders.food", "--header", "n=1", "--header", 's="1"', "--definitions", file, "--json")
    document = json.loads(done.stdout)
    assert document["queues"] == ["audit-log", "food"]
    assert document["headers"] == {"n": 1, "s": "1"}


def test_explain_knows_vhosts() -> None:
    done = holtmq("explain", "orders", "orders.eu.laptops", "--definitions", FOLDER / "http.json", "--vhost", "shop")
    assert "2 queues: all, laptops (priority 5 from the binding)" in done.stdout


def test_check_lists_weak_spots_and_fails_only_when_strict(file: Path) -> None:
    done = holtmq("definitions", "check", file)
    assert done.returncode == 0
    assert "shadowed binding" in done.stdout
    assert "1 warning, 0 notices" in done.stdout
    assert holtmq("definitions", "check", file, "--strict").returncode == 1
    (finding,) = json.loads(holtmq("definitions", "check", file, "--json").stdout)
    assert finding["kind"] == "shadowed binding"


def test_check_takes_real_exports() -> None:
    done = holtmq("definitions", "check", FOLDER / "rabbitmqctl.json")
    assert done.returncode == 0
    assert "dangling binding" in done.stdout


def test_bench_loads_a_broker_and_tells_what_it_saw(holtmq_broker: TestBroker) -> None:
    uri = f"amqp://127.0.0.1:{holtmq_broker.port}"
    done = holtmq_process(
        "bench", "--amqp-url", uri, "-C", "2000", "-z", "20", "-q", "50", "-f", "persistent", "-c", "100", "--json"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["sent"], result["received"], result["refused"]) == (2000, 2000, 0)
    timed = holtmq_process("bench", "--uri", uri, "-C", "200", "-r", "1000", "-x", "2", "-y", "2", "-s", "64")
    assert "latency   p50" in timed.stdout


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://127.0.0.1", "expected a URI as in amqp://"),
        ("amqp://127.0.0.1:1", "no broker at 127.0.0.1:1"),
        ("amqps://127.0.0.1:1", "expected an address without TLS, got amqps://127.0.0.1:1"),
        ("amqp://guest:wrong@127.0.0.1:{port}", "ACCESS_REFUSED"),
    ],
)
def test_bench_without_a_broker_says_so(holtmq_broker: TestBroker, uri: str, expected: str) -> None:
    done = holtmq_process("bench", "--amqp-url", uri.format(port=holtmq_broker.port), "-z", "1")
    assert done.returncode == 1
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bench_reads_its_url_and_password_from_the_environment(
    holtmq_broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLTMQ_AMQP_URL", f"amqp://guest@127.0.0.1:{holtmq_broker.port}")
    monkeypatch.setenv("HOLTMQ_PASSWORD", "wrong")
    assert "ACCESS_REFUSED" in holtmq_process("bench", "-C", "1").stderr


def test_demo_runs_to_its_summary(tmp_path: Path) -> None:
    """Without Spark: all of it is run by .ci/run, which also looks at what it leaves, and at the exactly-once job."""
    done = holtmq_process("demo", "--no-spark", "--folder", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().splitlines()[-2].startswith("Summary: ")
    assert "Billing went back and read offsets 4,900 to 4,999 again; its position is 5,000\n" in done.stdout
    kept = "1,000 messages confirmed, kill -9 of the active broker"
    assert kept in done.stdout if isinstance(find_programs(), Path) else "Skipped: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain", "x", "k", "--definitions", "/no/such/file"], 1, "/no/such/file: No such file or directory"),
        (["explain", "x", "k", "--definitions", "/"], 1, "/: Is a directory"),
        (["explain", "x", "k"], 2, "expected exactly one of --definitions, --data and --http-url"),
        (
            ["explain", "x", "k", "--data", "/no/such/file"],
            1,
            "/no/such/file does not exist; expected the path of a HoltMQ file",
        ),
        (["queue", "list", "/no/such/file"], 1, "/no/such/file does not exist; expected the path of a HoltMQ file"),
        (["queue", "list", "FILE"], 1, "is not a HoltMQ database; expected a HoltMQ database or a new file"),
        (["migrate", "/no/such/file"], 1, "/no/such/file does not exist; expected a MiniQ or litequeue file"),
        (["migrate", "FILE"], 1, "file is not a database; expected a MiniQ or litequeue file"),
        (["explain", "x"], 2, "Missing argument 'KEY'."),
        (["explain", "no", "k", "--definitions", "FILE"], 1, "no exchange 'no' in vhost '/'"),
        (["explain", "orders", "k" * 300, "--definitions", "FILE"], 1, "a routing key must be at most 255 bytes"),
        (["explain", "orders", "k", "--header", "novalue", "--definitions", "FILE"], 2, "expected NAME=VALUE, got 'novalue'"),
        (["explain", "x", "k", "--definitions", "FILE", "--vhost", "no"], 1, "no vhost 'no' in"),
        (["definitions", "check", "EMPTY"], 1, "document: expected JSON, got line 1 column 1"),
        (["nonsense"], 2, "No such command 'nonsense'."),
        (["--nonsense"], 2, "No such option"),
    ],
)
def test_errors_are_one_line_on_stderr(file: Path, arguments: list[str], code: int, message: str) -> None:
    empty = file.with_name("empty.json")
    empty.touch()
    done = holtmq(*(str(file) if word == "FILE" else str(empty) if word == "EMPTY" else word for word in arguments))
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("holtmq: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_ends_the_process_with_a_code_and_one_line() -> None:
    done = holtmq_process("explain", "x", "k", "--definitions", "/no/such/file")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "holtmq: /no/such/file: No such file or directory\n"


@pytest.mark.parametrize(
    "arguments", [[], ["explain"], ["definitions"], ["definitions", "check"], ["demo"], ["queue", "pop"], ["migrate"]]
)
def test_every_command_has_help(arguments: list[str]) -> None:
    done = holtmq(*arguments, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: holtmq")


def test_everyday_work_on_a_queue(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    assert holtmq("queue", "declare", file, "inbox", "-a", "x-max-priority=9").stdout == "Queue inbox created.\n"
    assert holtmq("queue", "declare", file, "inbox", "-a", "x-max-priority=9").stdout == "Queue inbox already exists.\n"
    assert "inequivalent arg 'x-max-priority'" in holtmq("queue", "declare", file, "inbox").stderr
    first = json.loads(holtmq("queue", "put", file, "inbox", "hello [bold]", "--key", "orders.food", "--json").stdout)["id"]
    holtmq("queue", "put", file, "inbox", "urgent", "--key", "orders.x", "--priority", "9", "--header", "vip=true")
    assert json.loads(holtmq("queue", "list", file, "--json").stdout) == [
        {"queue": "inbox", "ready": 2, "locked": 0, "done": 0, "failed": 0, "dead": 0, "damaged": 0}
    ]
    listed = holtmq("queue", "list", file, "inbox").stdout
    assert "hello [bold]" in listed
    assert str(first) in listed
    (peeked,) = json.loads(holtmq("queue", "peek", file, "inbox", "--json").stdout)
    assert (peeked["body"], peeked["headers"], peeked["priority"]) == ("urgent", {"vip": True}, 9)
    (popped,) = json.loads(holtmq("queue", "pop", file, "inbox", "--pattern", "#.food", "--json").stdout)
    assert (popped["id"], popped["state"]) == (first, "locked")
    assert holtmq("queue", "pop", file, "inbox", "--pattern", "#.food").returncode == 1
    assert holtmq("queue", "purge", file, "inbox", "--yes").stdout == "1 message removed.\n"
    assert "no queue 'other' in" in holtmq("queue", "pop", file, "other").stderr


def test_everyday_work_on_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    declare = ("queue", "declare", file, "events", "-a", "x-queue-type=stream", "-a", "x-max-age=7D")
    assert holtmq(*declare).stdout == "Queue events created.\n"
    assert holtmq(*declare).stdout == "Queue events already exists.\n"
    assert holtmq("queue", "get", file, "events").returncode == 1
    assert holtmq("queue", "put", file, "events", "hello [bold]", "--key", "orders.food").stdout == "0\n"
    put = holtmq("queue", "put", file, "events", "more", "--key", "orders.x", "--header", "vip=true", "--json")
    assert json.loads(put.stdout) == {"offset": 1}
    with open_file(file) as mq:
        mq.stream("events").commit("billing", 0)
    (listed,) = json.loads(holtmq("queue", "list", file, "--json").stdout)
    assert listed.pop("bytes") > 0
    assert listed == {
        "queue": "events", "type": "stream", "messages": 2, "first_offset": 0, "next_offset": 2, "positions": {"billing": 1},
    }  # fmt: skip
    assert "billing 1 (1)" in holtmq("queue", "list", file).stdout
    assert "hello [bold]" in holtmq("queue", "list", file, "events").stdout
    (last,) = json.loads(holtmq("queue", "get", file, "events", "--offset", "last", "--json").stdout)
    assert (last["offset"], last["body"], last["headers"], last["routing_key"]) == (1, "more", {"vip": True}, "orders.x")
    (first,) = json.loads(holtmq("queue", "get", file, "events", "--from", "1h", "--count", "1", "--json").stdout)
    assert first["offset"] == 0
    assert "more" in holtmq("queue", "get", file, "events", "--offset", "1", "--pattern", "*.x").stdout
    assert holtmq("queue", "get", file, "events", "--from", "2999-01-31T12:00").stdout == "No messages.\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pop"], "'events' is a stream, which keeps its messages: read them with holtmq queue get"),
        (["list", "--state", "ready"], "'events' is a stream, which keeps its messages"),
        (["put", "m", "--priority", "1"], "'events' is a stream: --priority, --ttl-ms and --delay-s have no meaning there"),
        (["get", "--offset", "x"], "expected first, last or an offset, got 'x'"),
        (["get", "--from", "soon"], "expected a time such as 2026-01-31T12:00 or an interval such as 1h, got 'soon'"),
        (["get", "--offset", "1", "--from", "1h"], "expected --offset or --from, got both"),
    ],
)
def test_what_makes_no_sense_for_a_stream_is_refused(tmp_path: Path, arguments: list[str], expected: str) -> None:
    file = tmp_path / "shop.db"
    holtmq("queue", "declare", file, "events", "-a", "x-queue-type=stream")
    command, *options = arguments
    done = holtmq("queue", command, file, "events", *options)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "no queue 'other' in" in holtmq("queue", "get", file, "other").stderr
    holtmq("queue", "declare", file, "inbox")
    assert "'inbox' is a queue, not a stream: see holtmq queue list" in holtmq("queue", "get", file, "inbox").stderr


def test_a_super_stream_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.db"
    declare = ("queue", "declare-super-stream", str(file), "events", "--max-age", "7D", "--partitions")
    assert [main([*declare, number]) for number in ("2", "2", "3", "2")] == [0, 0, 0, 1]
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "Super stream events with 2 partitions created.",
        "Super stream events with 2 partitions already exists.",
        "Super stream events with 3 partitions created.",
    ]
    assert "of which 2 are declared; also bound: events-2" in shown.err
    with open_file(file) as mq:
        for number in range(60):
            mq.publish(str(number), f"customer.{number}", exchange="events")
        records = [[record.routing_key for record in mq.stream(f"events-{n}").read()] for n in range(3)]
        routes = [mq.explain("events", f"customer.{number}").queues for number in range(60)]
    assert [sorted(keys) for keys in records] == [
        sorted(f"customer.{number}" for number, route in enumerate(routes) if route == (f"events-{n}",)) for n in range(3)
    ]
    assert all(records)


def test_purging_a_file_without_a_terminal_needs_yes(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    holtmq("queue", "put", file, "inbox", "hello")
    done = holtmq("queue", "purge", file, "inbox")
    assert done.returncode == 2
    assert done.stderr.endswith("add --yes to run it anyway\n")
    assert holtmq("queue", "purge", file, "inbox", "--yes").stdout == "1 message removed.\n"


def test_failed_messages_are_retried(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with open_file(file) as mq:
        mq.queue("q").put_many([("a", ""), ("b", "")])
        for message in mq.queue("q").pop_many(2):
            message.fail()
    assert holtmq("queue", "retry", file, "q", "--all-failed").stdout == "2 messages made ready.\n"
    with open_file(file) as mq:
        assert mq.queue("q").size() == 2


def test_explain_reads_a_holtmq_file(tmp_path: Path) -> None:
    with open_file(tmp_path / "shop.db") as mq:
        mq.declare_exchange("orders", "topic")
        mq.declare_queue("all")
        mq.bind("all", "orders", "#")
    assert "1 queue: all" in holtmq("explain", "orders", "a.b", "--data", tmp_path / "shop.db").stdout
