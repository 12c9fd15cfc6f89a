"""Names of 0.1 that still work in this release, with a DeprecationWarning."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holtmq.deprecation import REMOVED_IN

P = ParamSpec("P")
T = TypeVar("T")


def warn_renamed(old: str, new: str) -> None:
    """Warn that a name was renamed. The warning points to the caller of the calling function."""
    message = f"{old} was renamed to {new}; the old name will be removed in {REMOVED_IN}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def accept_old_keywords(**renamed: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function accept the keywords of 0.1: those of `renamed`, and Spark's camelCase for our snake_case."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = list(inspect.signature(function).parameters)
        old_names = {name.replace("_", ""): name for name in parameters if "_" in name} | renamed

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs.keys() - parameters:
                if new := old_names.get(name) or old_names.get(name.lower()):
                    warn_renamed(f"the keyword {name!r} of {function.__name__}()", repr(new))
                    kwargs[new] = kwargs.pop(name)
            return function(*args, **kwargs)

        return call

    return decorate


class OldToJson:
    """Adds `to_json()`, which is what `to_dict()` was called in 0.1."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return `to_dict()`. Deprecated."""
        warn_renamed(f"{type(self).__name__}.to_json()", "to_dict()")
        return self.to_dict()
