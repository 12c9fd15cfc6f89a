"""The guarantees when the whole Spark application is killed with SIGKILL during a stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.amqp_client import Amqp
from tests.server.process import BrokerProcess, broker_process
from tests.spark.conftest import wait_until

MESSAGES = 1250
STREAM = """
import sys
from holtmq.spark import register, session
url, ack, folder = sys.argv[1:]
spark = session("local[2]", config={"spark.driver.memory": "1g"})
register(spark)
assert len(spark.read.format("amqp").options(url=url, queue="many").load().limit(1).collect()) == 1
options = {"spool": folder + "/spool"} if ack == "spool" else {}
rows = spark.readStream.format("amqp").options(url=url, queue="q", ack=ack, maxMessagesPerTrigger="250", **options).load()
writer = rows.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
writer.start(folder + "/out").awaitTermination()
sys.stdin.read()
"""
ARCHIVE = """
import sys
from holtmq.spark import archive, session
url, _, folder = sys.argv[1:]
spark = session("local[2]", config={"spark.driver.memory": "1g"})
archive(spark, "q", folder + "/out", checkpoint=folder + "/checkpoint", url=url, max_messages_per_trigger=250)
sys.stdin.read()
"""


@contextmanager
def application(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Spark application, with its Java and its workers, in a process group of its own. It ends with its input."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], start_new_session=True, text=True, stdin=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(code: str, *arguments: str) -> None:
    with application(code, *arguments) as process:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors  # as from a worker whose rows `limit` does not need


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            for number in range(MESSAGES):
                channel.publish("", "q", b"%d" % number, delivery_mode=2, message_id=str(number))
            channel.settle()
            channel.declare("many", durable=True)
            channel.put("many", *[b"x" * 500] * 12_000)
        yield broker


def numbers(folder: Path) -> Counter[int]:
    """Count the messages in the archive. Of Spark's file sink, only files in its log are committed."""
    walked = (Path(at) / name for at, _, names in os.walk(folder) for name in names)  # folders may go meanwhile
    files = [str(path) for path in walked if path.suffix == ".parquet" and "_holtmq" not in path.parts]
    committed = folder / "_spark_metadata"
    if committed.exists():
        log = "".join(path.read_text() for path in committed.iterdir() if not path.name.endswith((".crc", ".tmp")))
        files = [name for name in files if Path(name).name in log]
    bodies = ds.dataset(files).to_table(columns=["body"]).column("body").to_pylist() if files else []
    return Counter(int(body) for body in bodies)


@pytest.mark.parametrize(
    ("code", "ack"), [(STREAM, "commit"), (STREAM, "spool"), (ARCHIVE, "spool")], ids=["ack=commit", "ack=spool", "archive"]
)  # fmt: skip
def test_an_application_that_is_killed_during_a_stream_loses_nothing(
    broker: BrokerProcess, tmp_path: Path, code: str, ack: str
) -> None:
    arguments = (f"amqp://127.0.0.1:{broker.port}", ack, str(tmp_path))
    with application(code, *arguments) as process:
        wait_until(lambda: len(numbers(tmp_path / "out")) >= 250 or process.poll() is not None, 180)
        assert process.poll() is None, "the application failed"
        os.killpg(process.pid, signal.SIGKILL)
    run(code, *arguments)
    found = numbers(tmp_path / "out")
    assert found.keys() == set(range(MESSAGES))
    if ack == "spool":  # then each message is there once, but for those that the broker delivered twice
        assert found.total() - MESSAGES == _redelivered(tmp_path / "out")
    with Amqp(broker.port) as amqp:
        assert amqp.channel().count("q") == 0


def _redelivered(folder: Path) -> int:
    """Count the redelivered copies: messages that were received but not acknowledged at the time of the kill."""
    files = [str(path) for path in folder.rglob("*.parquet") if "_holtmq" not in path.parts]
    table = ds.dataset(files).to_table(columns=["body", "redelivered"])
    seen = Counter(table.column("body").to_pylist())
    copies = [
        body for body, again in zip(*(table.column(n).to_pylist() for n in ("body", "redelivered")), strict=True) if again
    ]
    return sum(1 for body in copies if seen[body] > 1)
