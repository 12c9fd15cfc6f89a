"""Options that name the same messages however often Spark plans a read. Runs on the driver.

Spark may plan a source again for each action, and then looks up `latest` or `24h` again: it does for filters if
`spark.sql.python.filterPushdown.enabled` is true, and otherwise keeps the first plan of a `load()`, which it does not promise.
A job that makes several passes over a stream to which others publish would see other messages in each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from holtmq.spark.amqp.offset_options import ENDING, STARTING
from holtmq.spark.amqp.stream_queue_reader import StreamQueueReader

REPLACED = frozenset(name.lower() for name in ("queue", "queues", "queuePattern", STARTING, ENDING))


def fix_offsets(given: Mapping[str, str]) -> dict[str, str]:
    """Look up the queues and the positions of options now. Return options with their names and offsets instead."""
    ranges = StreamQueueReader(dict(given)).ranges()
    kept = {name: value for name, value in given.items() if name.lower() not in REPLACED}
    return {
        **_named(kept, [each.queue for each in ranges]),
        STARTING: json.dumps({each.queue: each.start for each in ranges}),
        ENDING: json.dumps({each.queue: each.end for each in ranges}),
    }


def _named(kept: dict[str, str], queues: list[str]) -> dict[str, str]:
    if len(queues) == 1:
        return {**_without_api(kept), "queue": queues[0]}
    if any("," in queue for queue in queues):  # only a pattern can name these
        return {**kept, "queuePattern": "|".join(map(re.escape, queues))}
    return {**_without_api(kept), "queues": ",".join(queues)}


def _without_api(kept: dict[str, str]) -> dict[str, str]:
    """Return options without the HTTP API, which only a pattern needs."""
    return {name: value for name, value in kept.items() if name.lower() != "managementurl"}
