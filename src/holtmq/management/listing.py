"""Filtering, sorting, pagination and column selection of lists, with RabbitMQ's query parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holtmq.errors import InvalidValueError
from holtmq.regular_expression import RegularExpression, escape

PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
MAX_COLUMNS = 200
MAX_COLUMN_DEPTH = 20
MAX_PATTERN_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Page:
    """The requested page of a list, counted from 1."""

    number: int
    size: int

    @property
    def start(self) -> int:
        return (self.number - 1) * self.size


@dataclass(frozen=True, slots=True)
class Listing:
    """The list parameters of a query."""

    name: RegularExpression | None = None
    sort: str | None = None
    is_reversed: bool = False
    columns: tuple[str, ...] = ()
    page: Page | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Listing:
        """Read the parameters from a query."""
        page = None
        if "page" in query:
            size = _number(query, "page_size", PAGE_SIZE, MAX_PAGE_SIZE)
            page = Page(_number(query, "page", 1, 2**31), size)
        return cls(
            name=_pattern(query) if page is not None or "name" in query else None,
            sort=query.get("sort") or None,
            is_reversed=query.get("sort_reverse") == "true",
            columns=_columns(query.get("columns", "")),
            page=page,
        )

    def matches(self, name: str) -> bool:
        """Return whether a name passes the filter."""
        return self.name is None or self.name.matches(name)

    def reads(self, column: str) -> bool:
        """Return whether the result or its order depends on a column."""
        asked = (*self.columns, self.sort or "")
        return not self.columns or any(each == column or each.startswith(f"{column}.") for each in asked)

    def apply(self, items: Sequence[dict[str, Any]], total: int) -> Any:
        """Sort the matching items, cut out the page and trim the columns. `total` is the count before filtering."""
        if self.sort is not None:
            items = sorted(items, key=lambda item: _sort_key(_value(item, self.sort or "")), reverse=self.is_reversed)
        elif self.is_reversed:
            items = list(reversed(items))
        if self.page is None:
            return [self.trim(item) for item in items]
        return self.page_of(items[self.page.start : self.page.start + self.page.size], len(items), total)

    def page_of(self, shown: Sequence[dict[str, Any]], matched: int, total: int) -> dict[str, Any]:
        """Return the page object for the items on it. `matched` and `total` count items after and before filtering."""
        assert self.page is not None
        number, size = self.page.number, self.page.size
        count = max(1, -(-matched // size))
        if number > count:
            raise PageOutOfRangeError(f"page {number} is out of range: {matched} items fill {count} pages of {size}")
        return {
            "total_count": total,
            "filtered_count": matched,
            "item_count": len(shown),
            "page": number,
            "page_size": size,
            "page_count": count,
            "items": [self.trim(item) for item in shown],
        }

    def trim(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the item with the selected columns only. A dotted column selects a field of a nested object."""
        if not self.columns:
            return item
        trimmed: dict[str, Any] = {}
        for column in self.columns:
            value = _value(item, column)
            if value is None and not _has(item, column):
                continue
            *path, last = column.split(".")
            inner = trimmed
            for name in path:
                inner = inner.setdefault(name, {})
            inner[last] = value
        return trimmed


class PageOutOfRangeError(InvalidValueError):
    """The requested page is beyond the last one."""


def _columns(text: str) -> tuple[str, ...]:
    columns = tuple(dict.fromkeys(name for name in text.split(",") if name))
    if len(columns) > MAX_COLUMNS or any(name.count(".") > MAX_COLUMN_DEPTH for name in columns):
        raise InvalidValueError(f"columns: expected at most {MAX_COLUMNS} names, each with at most {MAX_COLUMN_DEPTH} dots")
    return columns


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= most):
        raise InvalidValueError(f"{name}: expected a number from 1 to {most}, got {text[:40]!r}")
    return int(text)


def _pattern(query: Mapping[str, str]) -> RegularExpression | None:
    text = query.get("name", "")
    if not text:
        return None
    if len(text) > MAX_PATTERN_LENGTH:
        raise InvalidValueError(f"name: expected at most {MAX_PATTERN_LENGTH} characters, got {len(text)}")
    try:
        return RegularExpression(text if query.get("use_regex") == "true" else escape(text), ignores_case=True)
    except InvalidValueError as error:
        raise InvalidValueError(f"name: {error}") from error


def _value(item: Mapping[str, Any], column: str) -> Any:
    value: Any = item
    for name in column.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _has(item: Mapping[str, Any], column: str) -> bool:
    *path, last = column.split(".")
    holder = _value(item, ".".join(path)) if path else item
    return isinstance(holder, Mapping) and last in holder


def _sort_key(value: Any) -> tuple[int, Any]:
    """Order values by kind (null, numbers, strings, everything else), then by value."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return (2, value.lower()) if isinstance(value, str) else (3, str(value))
