"""Filtering, sorting, pagination and column selection of lists, with RabbitMQ's query parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holtmq import steps
from holtmq.errors import InvalidValueError
from holtmq.management.slices import collect, finish
from holtmq.regular_expression import RegularExpression, escape
from holtmq.steps import Steps

T = TypeVar("T")

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

    def count_of(self, items: int) -> int:
        """Return the number of pages that this many items fill."""
        return max(1, -(-items // self.size))

    def require_within(self, items: int) -> None:
        """Raise PageOutOfRangeError if this many items do not fill as many pages."""
        count = self.count_of(items)
        if self.number > count:
            raise PageOutOfRangeError(f"page {self.number} is out of range: {items} items fill {count} pages of {self.size}")


@dataclass(frozen=True, slots=True)
class Items(Generic[T]):
    """The objects of a list, and how to show one. Objects that are not on the requested page are not shown."""

    found: Sequence[T]
    view: Callable[[T], dict[str, Any]]
    names: Callable[[T], Sequence[str]] = lambda _: ("",)
    """The texts that the name filter searches."""
    order: Callable[[T], Any] | None = None
    """The sort key where none is requested, and among equals."""
    keys: Mapping[str, Callable[[T], Any]] = field(default_factory=dict)
    """Sort keys that can be read without showing an object, by column."""


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

    async def present(self, items: Items[T]) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Filter, sort, cut and trim a list. Return the page object or, without pages, an iterator over the views."""
        chosen, matched = await finish(self._choose(items))
        views = (self.trim(items.view(item)) for item in chosen)
        if self.page is None:
            return views
        return {
            "total_count": len(items.found),
            "filtered_count": matched,
            "item_count": len(chosen),
            "page": self.page.number,
            "page_size": self.page.size,
            "page_count": self.page.count_of(matched),
            "items": await collect(views),
        }

    def _choose(self, items: Items[T]) -> Steps[tuple[Sequence[T], int]]:
        """Return the objects to show, in order, and the number of objects that pass the filter."""
        matched: Sequence[T] = items.found
        if self.name is not None:
            matched = yield from self._filter(items)
        count, start, end = len(matched), 0, None
        if self.page is not None:
            self.page.require_within(count)
            start, end = self.page.start, self.page.start + self.page.size
        key = self._key(items)
        if key is not None:
            matched = yield from steps.sort(matched, key, is_reversed=self.is_reversed, most=end)
        elif self.is_reversed:
            matched = matched[::-1]
        return matched[start:end], count

    def _filter(self, items: Items[T]) -> Steps[list[T]]:
        matched = []
        for item in items.found:
            if any(map(self.matches, items.names(item))):
                matched.append(item)
            yield
        return matched

    def _key(self, items: Items[T]) -> Callable[[T], Any] | None:
        column, order = self.sort, items.order
        if column is None:
            return order
        read = items.keys.get(column) or (lambda item: _value(items.view(item), column))
        if order is None:
            return lambda item: _sort_key(read(item))
        return lambda item: (_sort_key(read(item)), order(item))

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
