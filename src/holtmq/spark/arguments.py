"""Checks of the arguments of public functions, before anything runs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

from holtmq.errors import InvalidValueError
from holtmq.topology import Topology


def require_type(name: str, value: object, type_: type, expected: str, hint: str = "") -> None:
    """Raise InvalidValueError if the value of a parameter has another type than the expected one."""
    if not isinstance(value, type_):
        seen = repr(value) if isinstance(value, str | int | float | bytes | None) else f"a {type(value).__name__}"
        raise InvalidValueError(f"{name} must be {expected}, got {seen}{hint}")


def require_topology(name: str, value: object) -> None:
    """Raise InvalidValueError if the value of a parameter is not a Topology."""
    if isinstance(value, Topology):
        return
    if _is_url(value):  # which may contain a password
        raise InvalidValueError(
            f"{name} must be a Topology, got a URL: save the definitions to a file, and read it with Topology.from_definitions"
        )
    hint = ""
    if isinstance(value, str | Path):
        hint = f": read the file with Topology.from_definitions({str(value)!r})"
    elif callable(value):
        hint = ": call it, and pass the Topology that it returns"
    require_type(name, value, Topology, "a Topology", hint)


def require_topology_of_stream(value: object) -> None:
    """Raise InvalidValueError, which names `route_batches`, if a stream is to follow a file, a URL or a function."""
    if isinstance(value, str | Path) or callable(value):
        seen = "a URL" if _is_url(value) else repr(str(value)) if isinstance(value, str | Path) else "a function"
        raise InvalidValueError(
            f"topology must be a Topology, got {seen}: route() uses one topology for the whole stream. To read it again for "
            "each micro-batch, write the stream with messages.writeStream.foreachBatch(route_batches(write, topology))"
        )


def _is_url(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def require_messages(name: str, value: object, reader: str = "spark.read") -> None:
    """Raise InvalidValueError if the value of a parameter is not a DataFrame."""
    hint = f": read the messages with {reader} first" if isinstance(value, str) else ""
    require_type(name, value, DataFrame, "a DataFrame", hint)


def require_place(vhost: object, exchange: object) -> None:
    """Raise InvalidValueError if the parameters `vhost` and `exchange` do not say where messages are published."""
    require_type("vhost", vhost, str, "the name of a virtual host")
    if exchange is not None:
        require_type("exchange", exchange, str, "the name of an exchange, or None for the exchange column")


def require_one_of(name: str, value: str, expected: tuple[str, ...]) -> None:
    """Raise InvalidValueError if the value of a parameter is not one of those expected."""
    if value not in expected:
        raise InvalidValueError(f"{name} must be one of {', '.join(expected)}, got {value!r}")
