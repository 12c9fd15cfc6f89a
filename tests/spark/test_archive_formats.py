"""The formats of an archive: what was archived can be read again, and a batch that is written again is stored once."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from holtmq import InvalidValueError
from holtmq.protocol.client_connection import Delivery
from holtmq.spark import archive, compact, read_archive
from holtmq.spark.amqp.columns import RAW_COLUMNS, SCHEMA, RowEncoder
from holtmq.spark.archive_folders import ArchiveFolders
from holtmq.spark.archive_sink import open_sink
from holtmq.spark.delta_table import ArchiveTable
from holtmq.spark.filesystems import WriteError
from holtmq.spark.packages import MissingPackageError
from holtmq.wire.content import encode_properties
from tests.amqp_client import Channel
from tests.spark.conftest import LiveBroker

QUERY = "0123456789abcdef"
KEYS = ("a/b", "50 %", "größe", "", "007")
FOLDERS = ArchiveFolders.by(("date", "routing_key"))


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> DataFrame:
    """One message for each key, with everything that a format may lose."""
    properties = encode_properties(
        {"message_id": "007", "headers": {"n": 1}, "timestamp": datetime(2026, 5, 1, 12, tzinfo=UTC), "priority": 3}
    )
    rows = RowEncoder("q").encode([Delivery(1, True, "x", key, properties, b"\xff\x00") for key in KEYS])
    return FOLDERS.add_to(spark.createDataFrame(rows.to_pandas(), SCHEMA)).coalesce(1)


def rows_of(messages: DataFrame) -> list[Any]:
    return sorted(messages.select(SCHEMA.names).collect(), key=lambda row: str(row["routing_key"]))


@pytest.mark.parametrize("format_", ["parquet", "orc", "json", "delta"])
def test_what_was_archived_is_read_again_and_a_repeated_batch_is_stored_once(
    spark: SparkSession, messages: DataFrame, tmp_path: Path, format_: str
) -> None:
    target = str(tmp_path / "an archive")
    for _ in range(2):
        open_sink(target, format_, FOLDERS).write(messages, QUERY, 4)
    assert rows_of(read_archive(spark, target, format=format_)) == rows_of(messages)


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_a_repeated_batch_stores_each_message_once_and_deletes_no_only_copy(
    spark: SparkSession, messages: DataFrame, tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has removed the messages of some folders before the second attempt."""
    target = str(tmp_path / "archive")
    before, left = messages.where("routing_key = '007'"), messages.where("routing_key in ('a/b', '50 %')")
    open_sink(target, format_, FOLDERS).write(before, QUERY, 3)
    with monkeypatch.context() as patch:
        patch.setattr("holtmq.spark.delta_table.ArchiveTable.commit", lambda *_: None)  # killed before
        open_sink(target, format_, FOLDERS).write(messages, QUERY, 4)
    assert open_sink(target, format_, FOLDERS).write(left, QUERY, 4) == 2
    stored = left if format_ == "delta" else messages  # what a table has not committed was never in it
    assert rows_of(read_archive(spark, target, format=format_)) == rows_of(before.union(stored))


def test_a_repeated_batch_with_fewer_files_replaces_those_of_the_first_attempt(
    spark: SparkSession, messages: DataFrame, tmp_path: Path
) -> None:
    target, folders = str(tmp_path / "archive"), ArchiveFolders.by(("date",))
    open_sink(target, "parquet", folders).write(messages.repartition(3), QUERY, 0)
    assert len(list(tmp_path.glob("archive/date=*/*.parquet"))) > 1
    open_sink(target, "parquet", folders).write(messages.coalesce(1), QUERY, 0)
    assert rows_of(read_archive(spark, target, format="parquet")) == rows_of(messages)


def test_files_of_an_earlier_version_and_compacted_files_are_read_together(
    spark: SparkSession, messages: DataFrame, tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    sink = open_sink(target, "json", ArchiveFolders.by(("date",)))
    for batch_id in range(3):
        sink.write(messages if batch_id else messages.drop(*RAW_COLUMNS), QUERY, batch_id)
    assert compact(spark, target, format="json", few_files=2) == (2, 0)
    expected = [row.asDict() for row in rows_of(messages)]
    old = [{**row, **dict.fromkeys(RAW_COLUMNS)} for row in expected]
    stored = [row.asDict() for row in rows_of(read_archive(spark, target, format="json"))]
    assert [row for row in stored if row["properties_raw"] is None] == old
    assert [row for row in stored if row["properties_raw"] is not None] == [row for row in expected for _ in range(2)]


PARTITIONS = {(key, key or None, date(2026, 5, 1)) for key in KEYS}
"""The columns by which the table is partitioned, for each key. Delta does not distinguish an empty string from null."""


def partitions_of(spark: SparkSession, target: str) -> Counter[tuple[str, str | None, date]]:
    stored = read_archive(spark, target, format="delta")
    assert stored.columns == [*SCHEMA.names, *FOLDERS.names]
    return Counter(map(tuple, stored.select("routing_key", "by_routing_key", "date").collect()))


def test_a_delta_table_is_valid_for_another_reader(spark: SparkSession, messages: DataFrame, tmp_path: Path) -> None:
    target = str(tmp_path / "a table")
    sink = open_sink(target, "delta", FOLDERS)
    assert (sink.write(messages, QUERY, 0), sink.write(messages, QUERY, 0), sink.write(messages, "another", 0)) == (5, 0, 5)
    table = DeltaTable(target)
    assert table.metadata().partition_columns == ["date", "by_routing_key"]
    assert (table.transaction_version(QUERY), table.count()) == (0, 10)
    found = table.to_pyarrow_table(filters=[("by_routing_key", "=", "a/b")]).to_pylist()
    assert [(row["routing_key"], row["body"], row["timestamp"]) for row in found] == [
        ("a/b", b"\xff\x00", datetime(2026, 5, 1, 12, tzinfo=UTC))
    ] * 2
    assert partitions_of(spark, target) == dict.fromkeys(PARTITIONS, 2)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert partitions_of(spark, target) == dict.fromkeys(PARTITIONS, 2)
    assert (tmp_path / "a table" / "_holtmq").is_dir()


def test_a_batch_of_a_delta_table_that_was_interrupted_is_stored_once(
    messages: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCutError(Exception):
        pass

    def cut(*arguments: object) -> None:
        raise PowerCutError

    target = str(tmp_path / "table")
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveTable, "commit", cut)
        with pytest.raises(PowerCutError):
            open_sink(target, "delta", FOLDERS).write(messages, QUERY, 7)
    assert DeltaTable(target).count() == 0
    assert open_sink(target, "delta", FOLDERS).write(messages, QUERY, 7) == 5
    assert DeltaTable(target).count() == 5
    with monkeypatch.context() as patch:  # after the commit, before Spark notes that the batch is done
        patch.setattr("holtmq.spark.archive_sink.StagingFolder.remove", cut)
        with pytest.raises(PowerCutError):
            open_sink(target, "delta", FOLDERS).write(messages, QUERY, 8)
    assert open_sink(target, "delta", FOLDERS).write(messages, QUERY, 8) == 0
    assert DeltaTable(target).count() == 10


def test_a_delta_table_with_other_partitions_or_columns_is_refused(messages: DataFrame, tmp_path: Path) -> None:
    target = str(tmp_path / "table")
    open_sink(target, "delta", FOLDERS).write(messages, QUERY, 0)
    with pytest.raises(WriteError, match=r"is partitioned by \['date', 'by_routing_key'\], got partition_by for .* \['date'\]"):
        open_sink(target, "delta", ArchiveFolders.by(("date",))).write(messages, QUERY, 1)
    with pytest.raises(WriteError, match="has no column 'more', which messages have: choose another location"):
        open_sink(target, "delta", FOLDERS).write(messages.selectExpr("*", "1 as more"), QUERY, 1)


@pytest.mark.parametrize("live", ["holtmq"], indirect=True)
def test_a_queue_is_archived_as_a_delta_table(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "table")
    for _ in range(2):
        channel.put(queue, *(b"%d" % n for n in range(50)), delivery_mode=2)
        summary = archive(spark, queue, target, format="delta", url=live.url)
        assert (summary.messages, summary.merged_files) == (50, 0)
    assert sorted(int(body) for body in DeltaTable(target).to_pyarrow_table()["body"].to_pylist()) == sorted([*range(50)] * 2)


def test_json_that_is_not_from_an_archive_keeps_its_types(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"exchange": "", "routing_key": "q", "body": "aGk="}')
    assert [row["body"] for row in read_archive(spark, str(tmp_path), format="json").collect()] == ["aGk="]


def test_without_deltalake_the_error_says_what_to_install(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingPackageError, match=r"the format delta needs the package deltalake, .* 'holtmq\[delta\]'"):
        archive(spark, "q", str(tmp_path), format="delta", url="amqp://127.0.0.1:1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format_", ["iceberg", "hudi", "csv", "text", "avro", "nonsense"])
def test_other_formats_are_refused_by_name(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    message = f"an archive cannot have the format '{format_}': expected one of parquet, orc, json, delta"
    with pytest.raises(InvalidValueError, match=message):
        archive(spark, "q", str(tmp_path), format=format_, url="amqp://127.0.0.1:1")


def test_a_delta_table_is_not_compacted_as_files(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="a Delta table is not compacted by holtmq: use OPTIMIZE"):
        compact(spark, str(tmp_path), format="delta")
