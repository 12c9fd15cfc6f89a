"""Fuzz one target in this process: python -m tests.fuzz.atheris_run TARGET [OPTIONS OF LIBFUZZER] FOLDER …"""

from __future__ import annotations

import sys

import atheris


def main() -> None:
    with atheris.instrument_imports(include=["holtmq"]):
        from tests.fuzz.targets import TARGETS
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
