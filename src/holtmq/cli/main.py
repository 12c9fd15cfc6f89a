"""The root of the command line, and the edge where errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

import holtmq
from holtmq.cli.account_commands import permissions, policies, users
from holtmq.cli.bench_command import bench
from holtmq.cli.completion_command import completion
from holtmq.cli.copy_command import copy
from holtmq.cli.declare_commands import bind, declare, delete, unbind
from holtmq.cli.definitions_commands import definitions
from holtmq.cli.demo_command import demo
from holtmq.cli.explain_command import explain
from holtmq.cli.list_commands import list_, status
from holtmq.cli.message_commands import get, move, publish, purge
from holtmq.cli.migrate_command import migrate
from holtmq.cli.pipeline_commands import pipeline
from holtmq.cli.queue_commands import queue
from holtmq.cli.serve_command import serve
from holtmq.cli.top_command import top
from holtmq.cli.vacuum_command import vacuum
from holtmq.errors import HoltmqError
from holtmq.printable import printable

FAILURE = 1
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(holtmq.__version__, prog_name="holtmq")
def cli() -> None:
    """AMQP routing from one file to a cluster."""


for command in (
    bench, bind, completion, copy, declare, definitions, delete, demo, explain, get, list_, migrate, move, permissions,
    pipeline, policies, publish, purge, queue, serve, status, top, unbind, users, vacuum,
):  # fmt: skip
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit code."""
    try:
        code = cli.main(arguments, prog_name="holtmq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (HoltmqError, OSError) as error:
        return _fail(_text(error), FAILURE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def run() -> None:
    """Run the holtmq command and exit."""
    sys.exit(main())


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _fail(message: str, code: int) -> int:
    print(f"holtmq: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
