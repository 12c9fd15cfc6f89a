"""The guarantees of the broker, and of streams in a file and on Spark: each of them names a test, and the test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BROKER = (ROOT / "docs/broker.md").read_text().split("## Guarantees")[1].split("\n\n")[2]
STREAMS = (ROOT / "docs/embedded.md").read_text().split("| what is guaranteed for a stream")[1].split("\n\n")[0]
SPARK = (ROOT / "docs/pipeline.md").read_text().split("| what is guaranteed for a stream queue")[1].split("\n\n")[0]
POSTGRES = (ROOT / "docs/postgres.md").read_text().split("| what is guaranteed on PostgreSQL")[1].split("\n\n")[0]
FAILOVER = (ROOT / "docs/postgres.md").read_text().split("| what is guaranteed for a broker on PostgreSQL")[1].split("\n\n")[0]
ROWS = [row for table in (BROKER, STREAMS, SPARK, POSTGRES, FAILOVER) for row in table.splitlines()[2:]]


@pytest.mark.parametrize("row", ROWS)
def test_every_guarantee_names_its_test(row: str) -> None:
    found = re.search(r"`(tests/[\w/]+\.py)::(\w+)` \|$", row)
    assert found is not None
    file, name = found.groups()
    assert f"def {name}(" in (ROOT / file).read_text()
