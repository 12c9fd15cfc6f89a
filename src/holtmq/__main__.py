"""python -m holtmq: the same as the holtmq command."""

from holtmq.cli.main import run

run()
