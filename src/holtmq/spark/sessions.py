"""session(): a SparkSession that is ready to use, with Java, Arrow, quiet logs, and this package on the executors.

Runs on the driver or, with Spark Connect, on the client, which needs no Java.
"""

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

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from holtmq.errors import InvalidValueError
from holtmq.spark.connect import is_connect
from holtmq.spark.java import java_home

MASTER = re.compile(r"local|local(-cluster)?\[[\d*, ]+\]|yarn|[a-z0-9]+://.+")
"""The masters that Spark accepts. For anything else, its launcher prints a Java stack trace."""
DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",  # messages are small, and each batch has a fixed cost
    "spark.sql.execution.arrow.maxBytesPerBatch": "64MB",  # the limit for large messages
    # Spark 4.3 copies the columns that a function in Python does not read value by value; whole rows are quicker to copy
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # the date of a message must not depend on where it is read
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),  # Spark's default of 200 is for clusters
    "spark.driver.memory": "4g",  # driver and executors share one process, for which Spark's default of 1 GB is too small
}
"""Settings for a local master: listen on loopback only, and avoid port conflicts between jobs."""
QUERY_ERRORS = "SQLQueryContextLogger"
"""The logger of PySpark that prints an error in a query as JSON, besides raising it."""
CONNECT = "sc://"
PACKAGES_SENT = "spark.holtmq.package"
"""The setting of a Spark Connect session that says that our package was sent to its server."""


def session(
    master: str | None = None, *, app_name: str = "holtmq", config: Mapping[str, Any] | None = None, quiet: bool = True
) -> SparkSession:
    """Return the active session, or a new one. Its executors can import holtmq. Runs on the driver.

    Args:
        master: Spark's master: `local[2]`, `spark://host:7077`, `yarn`, `k8s://…` (default: that of spark-submit or of the
            environment variable SPARK_MASTER, otherwise all cores of this machine), or a server of Spark Connect:
            `sc://host:15002` (default: that of the environment variable SPARK_REMOTE).
        app_name: The name of the application.
        config: Settings for Spark, which override our defaults.
        quiet: Whether to turn off Spark's logs. Errors of jobs are raised as exceptions in any case.
    """
    if master is not None and not MASTER.fullmatch(master):
        raise InvalidValueError(f"master must be one such as local[2], spark://host:7077, yarn or k8s://…, got {master!r}")
    running = SparkSession.getActiveSession()
    if running is not None:
        return _equip(running)
    settings = {**DEFAULTS, **(config or {})}
    builder = SparkSession.builder.appName(app_name)
    server = master or os.environ.get("SPARK_REMOTE", "")
    if server.startswith(CONNECT):
        return _equip(_configured(builder.remote(server), _of_session(settings)).getOrCreate())
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java and chosen the master
        return _equip(_configured(builder, settings).getOrCreate())
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if master.startswith("local"):
        settings = {**LOCAL_DEFAULTS, **settings}
    if quiet:
        PySparkLogger.getLogger(QUERY_ERRORS).setLevel("CRITICAL")
        options = settings.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{_log_settings()} {options}".strip()
    with _environment(master, settings.get("spark.pyspark.python")):
        return _equip(_configured(builder.master(master), settings).getOrCreate())


def _configured(builder: SparkSession.Builder, settings: Mapping[str, Any]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    return builder


def _of_session(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a client of Spark Connect can change: those of queries and ours. Others belong to the server."""
    return {name: value for name, value in settings.items() if name.startswith(("spark.sql.", "spark.holtmq."))}


def _equip(spark: SparkSession) -> SparkSession:
    """Send our package to the executors, unless the master is local and they can import it like the driver."""
    if is_connect(spark):
        if spark.conf.get(PACKAGES_SENT, None) is None:
            spark.addArtifacts(str(_package()), pyfile=True)
            spark.conf.set(PACKAGES_SENT, "true")
        return spark
    context = spark.sparkContext
    if not str(context.master).startswith("local[") and context.master != "local":
        package = _package()
        if package.name not in {Path(str(name)).name for name in context.listFiles}:
            context.addPyFile(str(package))
    return spark


def _package() -> Path:
    """Return a zip file of this package, which executors can import."""
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
def _environment(master: str, executor_python: str | None) -> Iterator[None]:
    """Set the environment that Spark reads at its start: JAVA_HOME and the Python of the executors.

    The latter is that of the configuration; without one, it is this interpreter if the master is local. PySpark reads
    `spark.pyspark.python` only in spark-submit, so it is passed on as an environment variable.
    """
    changes = {"JAVA_HOME": str(java_home())}
    if executor_python is not None:
        changes["PYSPARK_PYTHON"] = executor_python
    elif master.startswith("local"):
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
