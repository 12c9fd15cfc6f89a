"""A SparkSession that works: Java found or brought along, Arrow on, quiet, our code on the executors. Driver only."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holtmq.errors import InvalidValueError
from holtmq.spark.java import java_home

MASTER = re.compile(r"local|local(-cluster)?\[[\d*, ]+\]|yarn|[a-z0-9]+://.+")
"""What Spark takes for one; of anything else its launcher would tell with a trace of Java's."""
DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",  # messages are small, and a batch has a cost of its own
    "spark.sql.execution.arrow.maxBytesPerBatch": "64MB",  # but where they are not, this counts
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # a message's time is a moment; where it is read must not change its date
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),  # Spark's own 200 are for clusters
    "spark.driver.memory": "4g",  # driver and executors are one process here, and Spark's own 1 GB is little
}
"""On one machine nothing listens to the outside, and two jobs at a time do not quarrel over a port."""


def session(
    master: str | None = None, *, app_name: str = "holtmq", config: Mapping[str, Any] | None = None, quiet: bool = True
) -> SparkSession:
    """The running session, or a new one; in either case one whose executors can import holtmq.

    `master` is Spark's: `local[2]`, `spark://host:7077`, `yarn`, `k8s://…`; all cores of this machine unless it, or the
    environment (spark-submit, a notebook), says otherwise. `config` goes to Spark as it is, and wins over our defaults.
    """
    if master is not None and not MASTER.fullmatch(master):
        raise InvalidValueError(f"expected a master such as local[2], spark://host:7077, yarn or k8s://…, got {master!r}")
    running = SparkSession.getActiveSession()
    if running is not None:
        return _equip(running)
    settings = {**DEFAULTS, **(config or {})}
    builder = SparkSession.builder.appName(app_name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, and chosen the master
        return _equip(_configured(builder, settings).getOrCreate())
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if master.startswith("local"):
        settings = {**LOCAL_DEFAULTS, **settings}
    if quiet:
        options = settings.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{_log_settings()} {options}".strip()
    with _environment(master):
        return _equip(_configured(builder.master(master), settings).getOrCreate())


def _configured(builder: SparkSession.Builder, settings: Mapping[str, Any]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    return builder


def _equip(spark: SparkSession) -> SparkSession:
    """Send our package to the executors, unless they are on this machine and import it as the driver does."""
    context = spark.sparkContext
    if not str(context.master).startswith("local[") and context.master != "local":
        package = _package()
        if package.name not in {Path(str(name)).name for name in context.listFiles}:
            context.addPyFile(str(package))
    return spark


def _package() -> Path:
    """This package as a zip, as executors take it."""
    root = Path(str(files("holtmq")))
    target = Path(tempfile.mkdtemp(prefix="holtmq-package-")) / "holtmq.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("holtmq") / path.relative_to(root))
    return target


def _log_settings() -> Path:
    return Path(str(files("holtmq.spark") / "log4j2.properties"))


@contextmanager
def _environment(master: str | None) -> Iterator[None]:
    """What Spark reads from the environment as it starts: our JAVA_HOME, and on this machine this very Python."""
    changes = {"JAVA_HOME": str(java_home())}
    if master is None or master.startswith("local"):
        changes["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
