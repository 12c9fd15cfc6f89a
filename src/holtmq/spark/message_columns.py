"""The columns of a DataFrame, found by name according to Spark's rule for upper and lower case. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from holtmq.errors import InvalidValueError

CASE_RULE = "spark.sql.caseSensitive"


class MessageColumns:
    """The columns of a DataFrame. Spark ignores the case of their names, unless `spark.sql.caseSensitive` is true."""

    def __init__(self, fields: Iterable[StructField], *, is_case_sensitive: bool) -> None:
        self._fields = list(fields)
        self._is_case_sensitive = is_case_sensitive

    @classmethod
    def of(cls, messages: DataFrame) -> MessageColumns:
        """Return the columns of a DataFrame, with the rule of its session."""
        rule = str(messages.sparkSession.conf.get(CASE_RULE, "false"))
        return cls(messages.schema, is_case_sensitive=rule.lower() == "true")

    def find(self, name: str) -> StructField | None:
        """Return the column with this name, or None. Raise InvalidValueError if there are several."""
        found = [field for field in self._fields if self._folded(field.name) == self._folded(name)]
        if len(found) > 1:
            raise InvalidValueError(
                f"the messages have {len(found)} columns called {name!r}: {', '.join(field.name for field in found)}. "
                f"Rename one of them{'' if self._is_case_sensitive else f', or set {CASE_RULE} if they differ in case'}"
            )
        return found[0] if found else None

    def require(self, name: str, what: str) -> StructField:
        """Return the column with this name. Raise InvalidValueError if there is none, and say what it is for."""
        found = self.find(name)
        if found is not None:
            return found
        hint = ", or pass exchange= if all messages go to one exchange" if what == "exchange" else ""
        raise InvalidValueError(
            f"the messages have no column {name!r} for the {what}: found the columns "
            f"{', '.join(field.name for field in self._fields)}. Pass columns=Columns(…) with the right name{hint}. "
            "The commands have the options --key-column, --exchange-column and --headers-column"
        )

    def require_free(self, added: Iterable[str]) -> None:
        """Raise InvalidValueError if a column that will be added exists."""
        names = {self._folded(name) for name in added}
        taken = sorted(field.name for field in self._fields if self._folded(field.name) in names)
        if taken:
            raise InvalidValueError(
                f"the messages already have a column {taken[0]!r}, which routing adds: rename or drop it first"
            )

    def _folded(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()


def quote_name(name: str) -> str:
    """Quote a column name. Spark reads an unquoted dot as access to a field."""
    return f"`{name.replace('`', '``')}`"
