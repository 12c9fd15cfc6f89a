"""Checks of the arguments of public functions, before anything runs."""

from __future__ import annotations

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
    hint = f": read the file with Topology.from_definitions({value!r})" if isinstance(value, str) else ""
    require_type(name, value, Topology, "a Topology", hint)


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
