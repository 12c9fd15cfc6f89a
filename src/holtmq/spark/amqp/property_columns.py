"""The properties of many messages as columns of Arrow. Runs on the driver and the executors.

Messages of one publisher mostly have the same properties set. If they differ in little else, each distinct set of properties is
read once; if every message has an id of its own, the properties are read column by column, without an object for each message
(benchmarks/pipeline_stream.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holtmq.spark.amqp.encoded_properties import TEXTS, PropertyValues
from holtmq.wire.content import NAMES, present_properties

FEW = 4
"""Properties are read one by one if there are no more than one in this many distinct ones."""
READ_BY_COLUMN = TEXTS | {"delivery_mode", "priority"}
"""Properties that are as simple as they are common."""


def property_columns(raws: Sequence[bytes], types: Sequence[pa.DataType], known: PropertyValues) -> list[pa.Array]:
    """Return an array of each type for the properties in the order of NAMES. What was read before is known."""
    distinct = dict.fromkeys(raws)
    if FEW * len(distinct) > len(raws) and (columns := _by_column(raws)) is not None:
        return [_array(columns.get(name), kind, len(raws)) for name, kind in zip(NAMES, types, strict=True)]
    rows = [known[raw] for raw in distinct]
    places = {raw: place for place, raw in enumerate(distinct)}
    indices = pa.array([places[raw] for raw in raws], pa.int32())
    arrays = []
    for place, kind in enumerate(types):
        values = [row[place] for row in rows]
        is_unset = not any(value is not None for value in values)
        arrays.append(pa.nulls(len(raws), kind) if is_unset else pa.array(values, kind).take(indices))
    return arrays


def _by_column(raws: Sequence[bytes]) -> dict[str, list[Any]] | None:
    """Return the values of each property that is set, texts as bytes. Return None if the messages are not alike enough."""
    flags = raws[0][:2]
    names = present_properties(flags)
    if not READ_BY_COLUMN.issuperset(names) or any(not raw.startswith(flags) for raw in raws):
        return None
    columns: dict[str, list[Any]] = {}
    ats = [2] * len(raws)
    try:
        for name in names:
            if name in TEXTS:
                ends = [at + 1 + raw[at] for raw, at in zip(raws, ats, strict=True)]
                columns[name] = [raw[at + 1 : end] for raw, at, end in zip(raws, ats, ends, strict=True)]
                ats = ends
            else:
                columns[name] = [raw[at] for raw, at in zip(raws, ats, strict=True)]
                ats = [at + 1 for at in ats]
    except IndexError:
        return None
    return columns if ats == [len(raw) for raw in raws] else None


def _array(values: list[Any] | None, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    if not pa.types.is_string(kind):
        return pa.array(values, kind)
    try:
        return pa.array(values, pa.binary()).cast(kind)
    except pa.ArrowInvalid:  # not UTF-8
        return pa.array([value.decode("utf-8", "replace") for value in values], kind)
