"""The columns that routing adds to a message."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructField, StructType


class AddedColumns(NamedTuple):
    """`queue` and `reason` and, if requested, what the bindings set and through which bindings a message came."""

    settings: bool = False
    bindings: bool = False

    @property
    def types(self) -> dict[str, DataType]:
        """The names and types, in output order."""
        types: dict[str, DataType] = {"queue": StringType(), "reason": StringType()}
        if self.settings:
            types |= {"binding_priority": IntegerType(), "binding_ttl_ms": LongType()}
        return types | ({"bindings": ArrayType(StringType())} if self.bindings else {})

    @property
    def names(self) -> list[str]:
        """The names, in output order."""
        return list(self.types)

    @property
    def list_type(self) -> ArrayType:
        """The type of all rows of a message: an array of structs."""
        return ArrayType(StructType([StructField(name, type_) for name, type_ in self.types.items()]))


QUEUE_AND_REASON = AddedColumns()
