"""Calls that are made again if the connection to the store was lost before they changed anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holtmq.store.sql.sql_database import SqlDatabase

P = ParamSpec("P")
R = TypeVar("R")


class Owner(Protocol):
    @property
    def database(self) -> Any: ...


Self = TypeVar("Self", bound=Owner)


def persistent(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Let a method repeat its transaction if it is certain that it changed nothing (`SqlDatabase.persist`)."""
    return _again(method, is_repeatable=False)


def repeatable(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Let a method repeat its transaction although the first attempt may have been made: the second one does no harm."""
    return _again(method, is_repeatable=True)


def _again(method: Callable[Concatenate[Self, P], R], *, is_repeatable: bool) -> Callable[Concatenate[Self, P], R]:
    @wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        database: SqlDatabase = self.database
        return database.persist(partial(method, self, *args, **kwargs), is_repeatable=is_repeatable)

    return call
