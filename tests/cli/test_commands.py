"""The holtmq command, run as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holtmq.cli.demo import shop
from tests.topology.record_exports import FOLDER


def holtmq(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "holtmq", *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.json"
    path.write_text(json.dumps(shop().to_definitions()))
    return path


def test_explain_prints_the_story(file: Path) -> None:
    done = holtmq("explain", "orders", "orders.food", "--header", "vip=true", "--definitions", file)
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


def test_demo_runs_to_its_summary() -> None:
    done = holtmq("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().splitlines()[-1].startswith("Summary: ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain", "x", "k", "--definitions", "/no/such/file"], 1, "/no/such/file: No such file or directory"),
        (["explain", "x", "k", "--definitions", "/"], 1, "/: Is a directory"),
        (["explain", "x", "k"], 2, "Missing option '--definitions'."),
        (["explain", "x"], 2, "Missing argument 'KEY'."),
        (["explain", "no", "k", "--definitions", "FILE"], 1, "no exchange 'no' in vhost '/'"),
        (["explain", "orders", "k" * 300, "--definitions", "FILE"], 1, "a routing key must be at most 255 bytes"),
        (["explain", "orders", "k", "--header", "novalue", "--definitions", "FILE"], 2, "must be NAME=VALUE, got 'novalue'"),
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


@pytest.mark.parametrize("arguments", [[], ["explain"], ["definitions"], ["definitions", "check"], ["demo"]])
def test_every_command_has_help(arguments: list[str]) -> None:
    done = holtmq(*arguments, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: holtmq")
