"""Old names of public classes, which keep working for one release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

REMOVED_IN = "0.3"


def renamed(module: str, names: Mapping[str, type]) -> Callable[[str], type]:
    """Return a `__getattr__` for a module that maps old names to the classes they now refer to, with a warning."""

    def get_renamed(old: str) -> type:
        if old not in names:
            raise AttributeError(f"module {module!r} has no attribute {old!r}")
        message = f"{module}.{old} was renamed to {names[old].__name__}; the old name will be removed in {REMOVED_IN}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return names[old]

    return get_renamed
