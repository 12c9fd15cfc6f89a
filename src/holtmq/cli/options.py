"""Options that several commands share, so that one thing has one name on the whole command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from holtmq.database_url import is_url
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_VHOST, Topology


class AliasedOption(click.Option):
    """An option that accepts its old names too, while help and errors show only the first one."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        with self._first_name_only():
            return super().get_help_record(ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        with self._first_name_only():
            return super().get_error_hint(ctx)

    @contextmanager
    def _first_name_only(self) -> Iterator[None]:
        names, self.opts = self.opts, self.opts[:1]
        try:
            yield
        finally:
            self.opts = names


class StoreType(click.ParamType[Path | str]):
    """The path of a HoltMQ file, or the URL of a PostgreSQL database."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        return value if is_url(value) else Path(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return click.Path().shell_complete(ctx, param, incomplete)


store_type = StoreType()
definitions_option = click.option(
    "--definitions", type=click.Path(path_type=Path), help="Definitions file exported by RabbitMQ or HoltMQ."
)
data_option = click.option("--data", type=store_type, help="HoltMQ file, or the URL of a PostgreSQL database.")


def given_topology(definitions: Path | None, data: Path | str | None) -> Topology:
    """Return the topology of a definitions file, or of a store."""
    if definitions is not None and data is None:
        return Topology.from_definitions(definitions)
    if data is not None and definitions is None:
        return Topology.load(data)
    raise click.UsageError("expected exactly one of --definitions and --data")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
vhost_option = click.option("--vhost", "-V", default=DEFAULT_VHOST, show_default=True, help="Virtual host.")
header_option = click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Message header; VALUE is JSON or text. Can be repeated."
)
argument_option = click.option(
    "--argument",
    "-a",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument; VALUE is JSON or text. Can be repeated.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
PASSWORD_VARIABLE = "HOLTMQ_PASSWORD"
password_file_option = click.option(
    "--password-file",
    metavar="PATH",
    help=f"File with the password to log in with; - reads it from stdin [env: {PASSWORD_VARIABLE}, the password itself]",
)


def find_password(file: str | None, variable: str) -> str | None:
    """Return the password in a file or, if none is named, in an environment variable; None if that is not set either.

    A password is never the value of an option: other users of the machine can see the command lines of all processes.
    """
    if file is None:
        return os.environ.get(variable)
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read a password from {file}: {error}") from error
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        found = "more than one line" if password else "nothing"
        raise click.ClickException(f"expected the password as the only line of {file}, got {found}")
    return password


def require_confirmation(question: str, *, yes: bool) -> None:
    """Ask the user, and raise an error unless the answer is yes; without a terminal, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this command asks for confirmation, and stdin is not a terminal; add --yes to run it anyway")
    if not click.confirm(question):
        raise click.ClickException("cancelled; nothing was changed")


def parse_header(text: str) -> tuple[str, FieldValue]:
    """Return the name and value of NAME=VALUE; a value that is not JSON is text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def parse_table(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return the table that NAME=VALUE pairs describe."""
    return dict(map(parse_header, pairs))
