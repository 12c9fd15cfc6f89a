"""How Spark would read a DataFrame: whether it can be read again, and what that costs. Runs on the driver, without a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

READ_ONCE = ("amqp",)
"""Data sources from which messages are gone, or marked as redelivered, when they have been read."""
CHEAP_STEPS = frozenset({"Project", "Filter", "SubqueryAlias", "View", "Union"})
CHEAP_LEAVES = frozenset({"LocalRelation", "Range", "InMemoryRelation"})
EXPENSIVE_EXPRESSIONS = ("PYTHON_UDF", "SCALA_UDF", "PLAN_EXPRESSION")
"""Functions of the user, which may also have side effects, and subqueries."""
COLUMNAR_FORMATS = ("ParquetFileFormat", "OrcFileFormat")
"""File formats of which Spark reads single columns."""


class InputPlan:
    """The plan of a DataFrame as Spark has analysed it, with cached data in place of what was cached.

    A session of Spark Connect does not show it. Such an input counts as one that is expensive to read.
    """

    def __init__(self, messages: DataFrame) -> None:
        self._is_streaming = messages.isStreaming
        self._session: Any = messages.sparkSession
        frame: Any = None if self._is_streaming else getattr(messages, "_jdf", None)
        self._root: Any = None if frame is None else frame.queryExecution().withCachedData()

    def source_read_once(self) -> str | None:
        """Return the name of a source that cannot be read twice, if the plan has one."""
        if self._is_streaming:
            return "a stream"
        if self._root is None:
            return None
        names = (_table_name(leaf) for leaf in _nodes(self._root) if _kind(leaf).startswith("DataSourceV2"))
        return next((f"the source {name!r}" for name in names if name in READ_ONCE), None)

    def is_cheap(self) -> bool:
        """Return whether reading a few columns once more costs little, and returns the same messages.

        So it is for columnar files, generated and cached data, as far as they are only filtered and projected by Spark itself.
        """
        if self._root is None or not self._root.deterministic() or self._has_expensive_expressions():
            return False
        return all(_is_cheap(node) for node in _nodes(self._root))

    def is_filtered(self) -> bool:
        """Return whether the plan has a filter, so that any number of messages may have to be read to get a few."""
        return self._root is not None and any(_kind(node) == "Filter" for node in _nodes(self._root))

    def _has_expensive_expressions(self) -> bool:
        patterns = self._session.sparkContext._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        return any(self._root.containsPattern(getattr(patterns, name)()) for name in EXPENSIVE_EXPRESSIONS)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _is_cheap(node: Any) -> bool:
    kind = _kind(node)
    if kind == "LogicalRelation":
        relation = node.relation()
        return _kind(relation) == "HadoopFsRelation" and _kind(relation.fileFormat()).endswith(COLUMNAR_FORMATS)
    return kind in CHEAP_STEPS or kind in CHEAP_LEAVES


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _table_name(leaf: Any) -> str:
    return str(leaf.table().name()).lower()
