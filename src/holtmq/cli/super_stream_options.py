"""The options of the commands that declare a super stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

from holtmq.cli.options import argument_option, parse_table
from holtmq.topology import DEFAULT_VHOST
from holtmq.topology.super_stream import MOST_PARTITIONS, SuperStream

F = TypeVar("F", bound=Callable[..., Any])


def super_stream_options(command: F) -> F:
    """Add the name and the options of a super stream; the command gets its declaration as `stream`."""

    @wraps(command)
    def with_stream(
        *args: Any,
        name: str,
        partitions: int,
        max_age: str | None,
        max_bytes: int | None,
        arguments: tuple[str, ...],
        vhost: str = DEFAULT_VHOST,
        **options: Any,
    ) -> Any:
        limits = {"x-max-age": max_age, "x-max-length-bytes": max_bytes}
        given = {**{each: value for each, value in limits.items() if value is not None}, **parse_table(arguments)}
        return command(*args, stream=SuperStream(name, partitions, given, vhost), **options)

    for option in (
        argument_option,
        click.option("--max-bytes", type=click.IntRange(1), help="Size up to which each partition grows, in bytes."),
        click.option("--max-age", metavar="AGE", help="Age up to which messages are kept, such as 7D, 12h or 30m."),
        click.option("--partitions", required=True, type=click.IntRange(1, MOST_PARTITIONS), help="Number of partitions."),
        click.argument("name"),
    ):
        with_stream = option(with_stream)
    return cast("F", with_stream)
