"""The unused space of the data file, given back to the file system while the broker runs."""

from __future__ import annotations

import asyncio
from typing import Any

from holtmq.management.access import Need
from holtmq.management.operations import Call, Schema, api

ANSWER_S = 1.0
"""Time after which a request is answered in any case: a large file takes minutes, and nobody on the way waits as long."""
SIZE = {"type": "integer", "minimum": 0}
STATE: Schema = {
    "type": "object",
    "required": ["is_done", "bytes_before", "bytes_after"],
    "properties": {"is_done": {"type": "boolean"}, "bytes_before": SIZE, "bytes_after": SIZE},
}


@api.add("POST", "/api/vacuum", need=Need.ADMINISTRATOR, answers={200: STATE})
async def vacuum(call: Call) -> dict[str, Any]:
    """Give the unused space of the data file back. Repeat the request while `is_done` is false."""
    before, run = call.node.data_bytes, call.node.vacuum()
    await asyncio.wait([run], timeout=ANSWER_S)
    if run.done():
        run.result()  # or its error
    return {"is_done": run.done(), "bytes_before": before, "bytes_after": call.node.data_bytes}
