"""The guarantees when the whole Spark application is killed with SIGKILL during its streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.amqp_client import Amqp, Channel
from tests.server.process import BrokerProcess, broker_process
from tests.spark.conftest import wait_until
from tests.spark.killed_application import BATCH, MANY, START_TIMEOUT_S, STREAMS

MESSAGES = 25 * BATCH


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            for name in STREAMS:
                channel.declare(name, durable=True)
                for number in range(MESSAGES):
                    channel.publish("", name, b"%d" % number, delivery_mode=2, message_id=str(number))
            channel.settle()
            channel.declare(MANY, durable=True)
            channel.put(MANY, *[b"x" * 500] * 12_000)
        yield broker


@contextmanager
def application(*arguments: str, errors: int | IO[bytes] = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with a Spark application, its Java and its workers, in a process group of its own. It is killed at the end."""
    process = subprocess.Popen([sys.executable, *arguments], start_new_session=True, stdin=subprocess.PIPE, stderr=errors)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def written(folder: Path) -> pa.Table:
    """Return the messages that a stream has written. Of Spark's file sink, only files in its log are committed."""
    if (folder / "_delta_log").exists():
        return DeltaTable(folder).to_pyarrow_table(columns=["body", "redelivered"])
    walked = (Path(at) / name for at, _, names in os.walk(folder) for name in names)  # folders may go meanwhile
    files = [str(path) for path in walked if path.suffix == ".parquet" and "_holtmq" not in path.parts]
    committed = folder / "_spark_metadata"
    if committed.exists():
        log = "".join(path.read_text() for path in committed.iterdir() if not path.name.endswith((".crc", ".tmp")))
        files = [name for name in files if Path(name).name in log]
    if not files:
        return pa.table({"body": pa.array([], pa.binary()), "redelivered": pa.array([], pa.bool_())})
    return ds.dataset(files).to_table(columns=["body", "redelivered"])


def test_an_application_that_is_killed_during_its_streams_loses_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    url = f"amqp://127.0.0.1:{broker.port}"
    log = tmp_path / "stderr"
    with log.open("wb") as errors, application("-m", "tests.spark.killed_application", url, str(tmp_path), errors=errors):
        wait_until(lambda: "Traceback" in log.read_text() or is_half_done(tmp_path), START_TIMEOUT_S * len(STREAMS))
        assert log.read_text() == ""  # also of workers whose rows `limit` does not need
    batch = (tmp_path / "delta" / "written").read_text()
    assert not (tmp_path / "delta" / "checkpoint" / "commits" / batch).exists()
    assert len(written(tmp_path / "uncommitted" / "out")) == BATCH
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        wait_until(lambda: not any(channel.declare(name, passive=True).consumer_count for name in STREAMS))
        for name, run in STREAMS.items():
            run(spark, url, tmp_path / name, name, MESSAGES)
        assert {name: losses_and_copies(channel, name, tmp_path / name / "out") for name in STREAMS} == {
            "commit": {"lost": 0, "left": 0},
            "spool": {"lost": 0, "left": 0, "copies": 0},
            "parquet": {"lost": 0, "left": 0, "copies": 0},
            "delta": {"lost": 0, "left": 0, "copies": 0},
            "uncommitted": {"lost": 0, "left": 0, "copies": 0},
        }


def is_half_done(folder: Path) -> bool:
    """Return whether the Delta tables wait and all streams have written something. The last one to start comes first."""
    is_waiting = (folder / "delta" / "written").exists() and (folder / "uncommitted" / "stopped").exists()
    return is_waiting and all(len(written(folder / name / "out")) >= BATCH for name in reversed(STREAMS))


def losses_and_copies(channel: Channel, name: str, folder: Path) -> dict[str, int]:
    """Count the messages that are missing, those that are still in the queue, and those that were stored twice.

    A copy that is marked as redelivered does not count: it was received but not acknowledged at the time of the kill, and the
    broker delivered it again. With ack=commit a batch that was written and not committed is written again.
    """
    rows = written(folder).to_pylist()
    once = Counter(int(row["body"]) for row in rows if not row["redelivered"])
    found = {"lost": len(set(range(MESSAGES)) - {int(row["body"]) for row in rows}), "left": channel.count(name)}
    return found if name == "commit" else {**found, "copies": once.total() - len(once)}
