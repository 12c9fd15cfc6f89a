"""The jobs on a real cluster: a master and two workers on loopback, one of which is killed during a job."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from holtmq.client.publisher import Outgoing, Publisher
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.java import java_home
from tests.amqp_client import Amqp
from tests.ports import port_of, reserve_port
from tests.server.process import broker_process
from tests.spark import cluster_stream
from tests.spark.cluster_job import MESSAGES
from tests.spark.conftest import wait_until
from tests.spark.light_environment import make_light_environment

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
START_TIMEOUT_S = 180.0
JOB_TIMEOUT_S = 600.0
EXPECTED = {"food": MESSAGES // 4, "all": MESSAGES}
CLIENT = """
import sys
import warnings
from pyspark.errors import PySparkException
from holtmq.errors import HoltmqError
from holtmq.spark import archive, compact, compare, drain, publish, register, report, route, route_job, session
from holtmq.topology import Binding, Exchange, Queue, Topology

server, url = sys.argv[1:]
spark = session(server, config={"spark.holtmq.announce": "false"})
assert session() is spark
assert spark.conf.get("spark.holtmq.announce") == "false"
assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
topology = Topology((Exchange("x", "topic"),), (Queue("q"),), (Binding("x", "q", "a.#"),))
register(spark, topology)
messages = spark.sql("select 'x' as exchange, 'a.b' as routing_key, 'body' as body")
print([row.queue for row in route(messages, topology).collect()])
print(compare(messages, topology, Topology(topology.exchanges, topology.queues, ())).losing)
print(report(messages, topology).messages)
print(spark.sql("select holtmq_queues('x', 'a.b') as queues").first().queues)
sent = spark.sql("select '' as exchange, 'inbox' as routing_key, 'body' as body")
print(publish(sent, url=url).confirmed)
sent.write.format("amqp").options(url=url).mode("append").save()
print(spark.read.format("amqp").options(url=url, queue="inbox").load().count())
for refused in (
    lambda: compact(spark, "anywhere"),
    lambda: archive(spark, "inbox", "anywhere", url=url),
    lambda: route_job(spark, "anywhere", "elsewhere", topology),
    lambda: drain(spark, "inbox", print, url=url),
):
    try:
        refused()
    except HoltmqError as error:
        print(error)
spark.conf.set("spark.holtmq.announce", "nonsense")
register(spark)
try:
    spark.read.format("amqp").options(url=url, queue="inbox", limit=1).load().schema  # the server caches the plan above
except PySparkException as error:
    print("announce must be the URL" in str(error))
spark.stop()
"""


def environment(**more: str) -> dict[str, str]:
    ours = {
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "PYSPARK_PYTHON": sys.executable,
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **ours, **more}


@contextmanager
def daemon(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Spark's servers in a process group of its own."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [SPARK_CLASS, *arguments], stdout=output, stderr=output, env=environment(), start_new_session=True
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all processes that it started, such as the executors of a worker."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Run a master and two workers with one core each on loopback. Yield the address and the workers."""
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        port = str(port_of(stack.enter_context(reserve_port())))
        url = f"spark://127.0.0.1:{port}"
        master = ["org.apache.spark.deploy.master.Master", *here, "--port", port]
        stack.enter_context(daemon(folder / "master.log", *master))
        wait_until(lambda: "I have been elected leader" in (folder / "master.log").read_text(), START_TIMEOUT_S)
        worker = ["org.apache.spark.deploy.worker.Worker", *here, "--cores", "1", "--memory", "1500m"]
        workers = [
            stack.enter_context(daemon(folder / f"worker-{n}.log", *worker, "--work-dir", str(folder / f"work-{n}"), url))
            for n in range(2)
        ]
        for n in range(2):
            wait_until(lambda n=n: "Successfully registered" in (folder / f"worker-{n}.log").read_text(), START_TIMEOUT_S)  # type: ignore[misc]
        yield url, workers


def start_job(master: str, folder: Path, python: Path) -> subprocess.Popen[str]:
    """Start the job with this Python for the executors."""
    return start_application("cluster_job", master, str(folder / "in"), str(folder / "out"), str(python))


def start_application(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.spark.{name}", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )


def result(job: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, errors = job.communicate(timeout=JOB_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        raise
    assert job.returncode == 0, errors
    return dict(json.loads(output.splitlines()[-1]))


def test_a_worker_that_is_killed_during_a_job_costs_no_rows(tmp_path: Path) -> None:
    """The executors need nothing but pyspark, pandas and pyarrow."""
    python = make_light_environment(tmp_path / "light")
    with cluster(tmp_path) as (url, workers):
        job = start_job(url, tmp_path, python)
        wait_until(lambda: is_in_the_middle(tmp_path) or job.poll() is not None, START_TIMEOUT_S)
        kill(workers[0])
        found = result(job)
    assert found["counts"] == found["files"] == EXPECTED
    assert found["job"]["by"] == "arrow"
    assert not list((tmp_path / "out").glob("_holtmq-*"))
    assert found["importable"] == []
    assert all(path.endswith("holtmq.zip/holtmq/__init__.py") for path in found["paths"])


def test_a_worker_and_a_broker_that_are_killed_in_a_micro_batch_cost_no_offset_and_repeat_none(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker.db") as broker, cluster(tmp_path) as (master, workers):
        url = f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("events", durable=True, queue_type="stream")
        publisher = Publisher(lambda: BrokerOptions(url=url).connect("test"))
        publisher.publish(Outgoing("", "events", bytes(2), b"%d" % number) for number in range(cluster_stream.MESSAGES))
        publisher.flush()
        publisher.close()
        query = start_application("cluster_stream", master, url, "events", str(tmp_path / "out"))
        wait_until(lambda: is_in_the_middle(tmp_path) or query.poll() is not None, START_TIMEOUT_S)
        assert query.poll() is None, query.communicate()
        broker.kill()
        kill(workers[0])
        broker.start()
        found = result(query)["offsets"]
    size = cluster_stream.OFFSETS_PER_BATCH
    assert found == [list(range(start, start + size)) for start in range(0, cluster_stream.MESSAGES, size)]


def is_in_the_middle(folder: Path) -> bool:
    """Return whether some tasks have run, and the first worker has an executor."""
    return any((folder / "work-0").glob("app-*/*/stderr")) and "Running task 5" in executor_logs(folder)


def executor_logs(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("work-*/app-*/*/stderr"))


def test_a_client_of_spark_connect_routes_compares_reports_publishes_and_reads(tmp_path: Path) -> None:
    """The server's Python has no holtmq: the client sends it."""
    python, reservation = make_light_environment(tmp_path / "light"), reserve_port()
    port = port_of(reservation)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.pyspark.python": str(python),
        "spark.pyspark.driver.python": str(python),
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[1]", *conf]
    with (
        reservation,
        broker_process(tmp_path / "broker.db") as broker,
        daemon(tmp_path / "server.log", *server, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        Amqp(broker.port) as amqp,
    ):
        amqp.channel().declare("inbox", durable=True)
        wait_until(lambda: accepts(port), START_TIMEOUT_S)
        command = [sys.executable, "-c", CLIENT, f"sc://127.0.0.1:{port}", f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=JOB_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    *found, of_compact, of_archive, of_route_job, of_drain, is_setting_seen = done.stdout.splitlines()
    assert (found, is_setting_seen) == (["['q']", "1", "1", "['q']", "1", "2"], "True")
    refused = "runs on the driver and does not support Spark Connect: use a classic session"
    for job in (of_compact, of_archive, of_route_job):
        assert f"(archive, compact, route_job) {refused}" in job
    assert of_drain.startswith(f"drain {refused}")


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def test_spark_submit(tmp_path: Path) -> None:
    example = EXAMPLES / "spark_submit.py"
    submit = [str(SPARK_CLASS.with_name("spark-submit")), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    command = [*submit, str(example), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=JOB_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "1,000 messages, 1,500 deliveries" in done.stdout


def test_the_notebook_runs_from_top_to_bottom(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)  # session() returns the one that all tests share
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in json.loads((EXAMPLES / "pipeline.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert "33.3% of the messages are affected" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()
