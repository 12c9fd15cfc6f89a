"""The command `holtmq`, with so little memory for each queue that it pages its messages out and reads them back."""

from __future__ import annotations

from holtmq.broker import memory
from holtmq.cli.main import run

memory.WINDOW_BYTES = 100_000
memory.WINDOW_MESSAGES = 50

if __name__ == "__main__":
    run()
