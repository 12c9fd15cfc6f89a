"""The shim makes exactly the calls fail that it was told to."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.recording import Disk, read_log
from tests.faults.shim import Call, Outcome, Shim

PROGRAM = """
import errno, json, os, sys, time
def attempt(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
seen = [attempt(os.pwrite, file, b"x" * 100, 0), attempt(os.pwrite, file, b"y" * 100, 100), attempt(os.fsync, file)]
seen += [len(os.pread(file, 100, 0)), os.fstat(file).st_size, time.time()]
print(json.dumps(seen))
"""

CREATE_AT_THE_SAME_TIME = """
import os, sys
child = os.fork()
for number in range(1000):
    file = os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"x", 0)
    os.close(file)
if child:
    os.waitpid(child, 0)
"""

SEND_PIECES_BY_A_COPY = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
    server, _ = listener.accept()
    copy = os.dup(server.fileno())
    server.send(b"first,")
    os.writev(copy, [b"%d," % number for number in range(500)])
    server.close()
    os.write(copy, b"last")
"""

ANSWER_EACH_MESSAGE_WITH_A_WRITE = """
import os, socket, sys, threading
with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
    server, _ = listener.accept()
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    def answer():
        for number in range(20000):
            client.recv(1)
            os.pwrite(file, b"x", number)
    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(20000):
        server.send(b"x")
    thread.join()
"""


@pytest.fixture
def shim(tmp_path: Path, shim_library: Path) -> Shim:
    (tmp_path / "data").mkdir()
    return Shim(shim_library, tmp_path / "data", tmp_path / "control", tmp_path / "log")


def run(shim: Shim, tmp_path: Path) -> list[Any]:
    """Write 100 bytes twice, sync, and read 100 bytes. Return the results, the size of the file, and the time."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "data" / "file.db")]
    done = subprocess.run(command, env=shim.environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_without_a_rule_nothing_fails(shim: Shim, tmp_path: Path) -> None:
    *seen, now = run(shim, tmp_path)
    assert seen == [100, 100, None, 100, 200]
    assert abs(now - time.time()) < 1000
    assert shim.hits == 0


def test_a_rule_applies_to_the_calls_and_the_files_that_it_names(shim: Shim, tmp_path: Path) -> None:
    shim.set_rule(Call.WRITE, errno.EIO, ending=".db", skip=1)
    assert run(shim, tmp_path)[:5] == [100, "EIO", None, 100, 100]
    assert shim.hits == 1
    shim.set_rule(Call.SYNC, errno.EIO, count=5)
    assert run(shim, tmp_path)[:3] == [100, 100, "EIO"]
    shim.set_rule(Call.WRITE, errno.EIO, ending="-wal", count=5)
    assert run(shim, tmp_path)[:3] == [100, 100, None]


def test_a_transfer_can_be_short(shim: Shim, tmp_path: Path) -> None:
    shim.set_rule(Call.READ | Call.WRITE, Outcome.SHORT, count=5)
    assert run(shim, tmp_path)[:5] == [50, 50, None, 50, 150]


def test_a_full_disk_takes_what_fits(shim: Shim, tmp_path: Path) -> None:
    shim.set_space(130)
    assert run(shim, tmp_path)[:5] == [100, 30, None, 100, 130]
    assert run(shim, tmp_path)[:5] == [100, 30, None, 100, 130]
    shim.heal()
    assert run(shim, tmp_path)[:5] == [100, 100, None, 100, 200]


def test_the_wall_clock_can_be_moved(shim: Shim, tmp_path: Path) -> None:
    shim.set_clock(-1e6)
    assert abs(run(shim, tmp_path)[5] + 1e6 - time.time()) < 1000


def test_a_process_can_die_in_the_middle_of_a_write(shim: Shim, tmp_path: Path) -> None:
    shim.set_rule(Call.WRITE, Outcome.DIE)
    with pytest.raises(subprocess.CalledProcessError, match="SIGKILL"):
        run(shim, tmp_path)
    assert (tmp_path / "data" / "file.db").read_bytes() == b"x" * 50


def test_what_was_not_synced_may_be_lost(shim: Shim, tmp_path: Path) -> None:
    import random

    (tmp_path / "empty").mkdir()
    run(shim, tmp_path)
    records = list(read_log(tmp_path / "log"))
    assert [(record.kind, record.name, record.offset, len(record.data)) for record in records] == [
        ("c", "file.db", 0, 0),
        ("w", "file.db", 0, 100),
        ("w", "file.db", 100, 100),
        ("b", "file.db", 0, 0),
        ("e", "file.db", 0, 0),
    ]

    def left(seed: int, cut: int, name: str) -> bytes | None:
        disk, folder = Disk(tmp_path / "empty"), tmp_path / f"{name} {seed}"
        for record in records[:cut]:
            disk.take(record)
        disk.survive(random.Random(seed), folder)
        file = folder / "file.db"
        return file.read_bytes() if file.exists() else None

    whole = b"x" * 100 + b"y" * 100
    assert {left(seed, 5, "synced") for seed in range(30)} == {None, whole}, "the name was not synced"
    assert {left(seed, 3, "not synced") for seed in range(60)} >= {None, b"", b"x" * 100, bytes(100) + b"y" * 100, whole}


def test_a_file_is_recorded_as_new_before_it_is_written(shim: Shim, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CREATE_AT_THE_SAME_TIME, str(tmp_path / "data")]
    subprocess.run(command, env=shim.environment, check=True)
    kinds: dict[str, str] = {}
    for record in read_log(tmp_path / "log"):
        if record.name:
            kinds[record.name] = kinds.get(record.name, "") + record.kind
    assert kinds == {f"{number}": "cww" for number in range(1000)}


def test_what_is_sent_to_a_client_is_recorded_whole_whichever_descriptor_it_takes(shim: Shim, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SEND_PIECES_BY_A_COPY], env=shim.environment, check=True)
    sent = [record for record in read_log(tmp_path / "log") if record.kind == "s"]
    assert len({record.stream for record in sent}) == 1
    assert b"".join(record.data for record in sent) == b"first," + b"".join(b"%d," % number for number in range(500)) + b"last"


def test_a_write_in_answer_to_what_was_sent_is_recorded_after_it(shim: Shim, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANSWER_EACH_MESSAGE_WITH_A_WRITE, str(tmp_path / "data" / "file.db")]
    subprocess.run(command, env=shim.environment, check=True)
    sent = written = 0
    for record in read_log(tmp_path / "log"):
        sent += record.kind == "s"
        written += record.kind == "w"
        assert written <= sent
    assert written == 20_000
