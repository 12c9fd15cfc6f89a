"""The command `holtmq`, with so little memory for each queue that it pages its messages out and reads them back.

It also checkpoints often.
"""

from __future__ import annotations

from holtmq.broker import memory
from holtmq.cli.main import run
from holtmq.store.sqlite import database

memory.WINDOW_BYTES = 100_000
memory.WINDOW_MESSAGES = 50
database.CHECKPOINT_PAGES["full"] = 200

if __name__ == "__main__":
    run()
