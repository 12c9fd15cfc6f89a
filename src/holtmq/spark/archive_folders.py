"""The folders of an archive: which columns name them. Runs on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holtmq.errors import InvalidValueError

DATE = "date"
"""The date of a message: that of its timestamp or, without one, of its receipt."""


@dataclass(frozen=True, slots=True)
class ArchiveFolders:
    """The columns by which an archive is divided into folders.

    A folder is named after a copy of the column, and the original stays in the files: in the name of a folder, an empty string
    cannot be distinguished from null, nor 007 from 7.
    """

    columns: tuple[str, ...]

    @classmethod
    def by(cls, partition_by: Sequence[str]) -> ArchiveFolders:
        """Check the type of a parameter `partition_by`."""
        if isinstance(partition_by, str):
            raise InvalidValueError(f"partition_by must be a sequence of column names such as ('date',), got {partition_by!r}")
        return cls(tuple(partition_by))

    @property
    def names(self) -> list[str]:
        """The columns that `add_to` adds."""
        return [_copy(name) for name in self.columns]

    def add_to(self, messages: DataFrame) -> DataFrame:
        """Add the columns that name the folders."""
        known = [DATE, *messages.columns]
        for name in self.columns:
            if name not in known:
                raise InvalidValueError(
                    f"partition_by names the column {name!r}, which messages do not have: "
                    f"expected columns of {', '.join(known)}"
                )
            value = F.to_date(F.coalesce("timestamp", "received_at")) if name == DATE else F.col(name)
            messages = messages.withColumn(_copy(name), value)
        return messages


def _copy(name: str) -> str:
    return name if name == DATE else f"by_{name}"
