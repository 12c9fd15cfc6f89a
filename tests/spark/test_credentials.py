"""Passwords appear in no plan, no event of Spark's web UI, and no log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.amqp_client import Amqp
from tests.server.process import broker_process

SECRET = "hush-4711"
APPLICATION = """
import sys
from pathlib import Path
from holtmq.spark import publish, register, session
url, secret, folder = sys.argv[1:]
spark = session("local[1]", quiet=False, config={
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": "file:" + folder, "spark.eventLog.compress": "false",
    "spark.driver.memory": "1g"})
spark.sparkContext.setLogLevel("DEBUG")
register(spark)
with_password = url.replace("://", "://guest:" + secret + "@")
for options in ({"url": url, "password": secret}, {"url": with_password}):
    rows = spark.read.format("amqp").options(queue="q", **options).load()
    rows.explain("formatted"); rows.explain("extended")
    print(rows._jdf.queryExecution().toString())
    try:
        rows.collect()
    except Exception as error:
        print(error)
    try:
        rows.drop("source_queue", "redelivered", "received_at").write.format("amqp").mode("append").options(**options).save()
    except Exception as error:
        print(error)
    stream = spark.readStream.format("amqp").options(queue="q", **options).load()
    writer = stream.writeStream.format("amqp").options(**options).option("checkpointLocation", folder + "/c")
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        print(error)
    query.explain(True)
spark.stop()
"""


def test_a_password_is_in_no_plan_no_event_and_no_log(tmp_path: Path) -> None:
    """The password is wrong, so the errors of refused connections are examined too."""
    with broker_process(tmp_path / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q", durable=True)
        (tmp_path / "events").mkdir()
        command = [sys.executable, "-c", APPLICATION, f"amqp://127.0.0.1:{broker.port}", SECRET, str(tmp_path / "events")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ACCESS_REFUSED" in done.stdout
    events = "".join(
        path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file() and "event" in str(path.name)
    )
    assert "SparkListenerSQLExecutionStart" in events
    for text in (done.stdout, done.stderr, events):
        assert SECRET not in text
