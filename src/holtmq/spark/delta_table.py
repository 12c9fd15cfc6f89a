"""An archive as a Delta table. The only module that needs the package deltalake. Runs on the driver.

The executors write Parquet files as for any other archive, and a commit to the log of the table makes them visible. The
package needs no Java, so any version of Spark can write a Delta table. A commit contains the id of the query and the number of
the batch (a `txn` action of the Delta protocol), so that a batch that Spark writes again is recognised.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from holtmq.errors import InvalidValueError
from holtmq.spark.archive_layout import join_path
from holtmq.spark.filesystems import WriteError, filesystem_of, path_below
from holtmq.spark.packages import require_package

DELTA = "delta"
"""The name of the format."""
NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the folder of null."""
FILE = "_holtmq_file"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file that a commit adds to the table."""

    path: str
    """The path below the table."""
    size: int
    modified_ms: int
    rows: int
    partition: dict[str, str | None]

    @classmethod
    def at(cls, filesystem: fs.FileSystem, root: str, path: str, folder: str) -> NewFile:
        """Describe the file at a path below the root, which Spark has written to this folder of a staging folder."""
        info = filesystem.get_file_info(join_path(root, path))
        with filesystem.open_input_file(info.path) as stream:
            rows = pq.read_metadata(stream).num_rows
        names = dict(part.split("=", 1) for part in folder.split("/")) if folder else {}
        partition = {unquote(name): None if value == NULL else unquote(value) for name, value in names.items()}
        return cls(path, info.size, info.mtime_ns // 1_000_000, rows, partition)


class ArchiveTable:
    """A Delta table that contains an archive. Raise MissingPackageError if deltalake is not installed."""

    def __init__(self, uri: str) -> None:
        self._library = require_package("deltalake", "the format delta", "delta")
        self._uri = uri
        self._table: Any = None

    def create(self, schema: StructType, partition_by: list[str]) -> None:
        """Create the table if there is none. Raise WriteError if there is one with other columns or partitions."""
        if self._table is not None:
            return
        columns = self._library.Schema.from_json(schema.json())  # Delta and Spark have the same notation
        table = self._library.DeltaTable.create(self._uri, schema=columns, partition_by=partition_by, mode="ignore")
        missing = sorted({*schema.names} - {field.name for field in table.schema().fields})
        if missing:
            raise WriteError(
                f"the Delta table {self._uri} has no column {missing[0]!r}, which messages have: choose another location, or "
                "add the column to the table"
            )
        found = list(table.metadata().partition_columns)
        if found != partition_by:
            raise WriteError(
                f"the Delta table {self._uri} is partitioned by {found}, got partition_by for the columns {partition_by}: "
                "choose another location, or the partitions of the table"
            )
        self._table = table

    def has_batch(self, query_id: str, batch_id: int) -> bool:
        """Return whether a commit contains this batch of a query."""
        self._table.update_incremental()
        last = self._table.transaction_version(query_id)
        return last is not None and last >= batch_id

    def commit(self, files: list[NewFile], query_id: str, batch_id: int) -> None:
        """Add the files of a batch to the table, all at once."""
        from deltalake.transaction import AddAction

        actions = [
            AddAction(
                file.path, file.size, file.partition, file.modified_ms, data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]  # fmt: skip
        batch = self._library.CommitProperties(app_transactions=[self._library.Transaction(query_id, batch_id)])
        partition_by = list(self._table.metadata().partition_columns)
        self._table.create_write_transaction(actions, "append", self._table.schema(), partition_by, commit_properties=batch)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the newest version of the table. Raise InvalidValueError if deltalake cannot read it.

        The driver reads the log of the table, the executors read the files. The files lack the columns by which the table is
        partitioned: the log has one value of each for a whole file.
        """
        try:
            table = self._library.DeltaTable(self._uri)
            paths = table.to_pyarrow_dataset().files
        except self._library.exceptions.DeltaError as error:
            raise InvalidValueError(f"deltalake cannot read a Delta table at {self._uri}: {error}") from error
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        names = list(table.metadata().partition_columns)
        root = self._uri.rstrip("/")
        if not paths:
            return spark.createDataFrame([], schema)
        stored = StructType([field for field in schema if field.name not in names])
        rows = spark.read.schema(stored).parquet(*(f"{root}/{path}" for path in paths))
        return self._with_partitions(rows, table, schema, names) if names else rows

    def _with_partitions(self, rows: DataFrame, table: Any, schema: StructType, names: list[str]) -> DataFrame:
        """Add the columns that the files lack, from the log of the table."""
        added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        values = {unquote(file["path"]): [file[f"partition.{name}"] for name in names] for file in added}
        root = filesystem_of(self._uri)[1].rstrip("/")
        files = [(file, *values[path_below(unquote(file), root)]) for file in rows.inputFiles()]
        columns = StructType([StructField(FILE, StringType()), *(schema[name] for name in names)])
        partitions = F.broadcast(rows.sparkSession.createDataFrame(files, columns))
        return rows.withColumn(FILE, F.input_file_name()).join(partitions, FILE, "left").select(*schema.names)
