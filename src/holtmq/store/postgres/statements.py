"""The statements of this folder, by name, and the translation of those that SQLite shares."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

FOLDER = files("holtmq.store.postgres")
SCHEMA = tuple(FOLDER.joinpath(f"schema-{version}.sql").read_text() for version in range(1, 2))
"""The step from each version of the schema to the next."""
COLUMNS = """
    locked.message_id, routing_keys.key, coalesce(locked.exchange, messages.exchange), locked.priority, locked.state,
    locked.attempts, locked.created_at, locked.due_at, locked.expires_at, locked.locked_at, locked.settled_at,
    coalesce(locked.headers, messages.headers), coalesce(locked.properties, messages.properties),
    coalesce(locked.body, messages.body), coalesce(locked.raw_properties, messages.raw_properties),
    coalesce(locked.checksum, messages.checksum)
"""
"""The fields of `StoredMessage`."""
JOINS = """
LEFT JOIN messages ON locked.is_shared = 1 AND messages.id = locked.message_id
LEFT JOIN routing_keys ON routing_keys.id = locked.key_id
"""
ROWS = f"""
SELECT locked.queue_id, locked.message_id, coalesce(locked.exchange, messages.exchange), routing_keys.key, locked.priority,
    locked.expires_at, locked.attempts, coalesce(locked.headers, messages.headers),
    coalesce(locked.properties, messages.properties), coalesce(locked.raw_properties, messages.raw_properties),
    coalesce(locked.body, messages.body), coalesce(locked.checksum, messages.checksum)
FROM deliveries AS locked {JOINS}
"""
"""The queue and the fields of `StoredRow`."""
IN_STATES = """
    SELECT message_id FROM deliveries WHERE queue_id = $1 AND state = 0 AND 0 = ANY ($2::smallint[])
    UNION ALL SELECT message_id FROM deliveries
    WHERE queue_id = $1 AND due_at IS NOT NULL AND state IN (1, 5) AND state = ANY ($2::smallint[])
    UNION ALL SELECT message_id FROM deliveries
    WHERE queue_id = $1 AND settled_at IS NOT NULL AND state > 1 AND state <> 5 AND state = ANY ($2::smallint[])
"""
"""The messages of a queue in some states, found through the index that has each of them."""
CLAIMED = f"""
, locked AS (
    UPDATE deliveries SET state = 1, attempts = attempts + 1, due_at = $3, locked_at = $2
    WHERE message_id = (SELECT message_id FROM head) AND queue_id = $1 AND (expires_at IS NULL OR expires_at >= $2)
    RETURNING *
)
SELECT {COLUMNS}, CASE WHEN $4 THEN set_config('synchronous_commit', 'off', true) END
FROM locked {JOINS}
"""
"""Locks the message of `head`, and returns it."""
MINE = """
message_id = ANY ($2::bigint[]) AND queue_id = $1 AND state = 1
    AND attempts = ($3::integer[])[array_position($2::bigint[], message_id)]
"""
"""Messages that the caller has locked. A join with the lists would be planned for an empty table, and read all of it."""
FREED = """
, held AS (
    SELECT id FROM messages WHERE id = ANY (ARRAY (SELECT message_id FROM gone WHERE is_shared = 1)) ORDER BY id FOR UPDATE
), freed AS (
    UPDATE messages SET copies = copies - 1 WHERE id = ANY (ARRAY (SELECT id FROM held))
)
"""
"""Counts the queues that still have a content. Rows are locked in order, so that two processes never wait for each other."""
MARK = re.compile(r"\?(\d*)")


def load(name: str) -> dict[str, str]:
    """Return the statements of a file by their names, without comments."""
    parts = re.split(r"^-- name: (\w+)\n", FOLDER.joinpath(name).read_text(), flags=re.MULTILINE)[1:]
    return {
        key: re.sub(r"^--.*\n", "", text, flags=re.MULTILINE).strip().rstrip(";")
        .replace("{columns}", COLUMNS.strip())
        .replace("{joins}", JOINS.strip())
        .replace("{rows}", ROWS.strip())
        .replace("{freed}", FREED.strip())
        .replace("{in_states}", IN_STATES.strip())
        .replace("{mine}", MINE.strip())
        .replace("{claimed}", CLAIMED.strip())
        for key, text in zip(parts[::2], parts[1::2], strict=True)
    }  # fmt: skip


@lru_cache(None)
def translated(statement: str) -> str:
    """Return a statement with PostgreSQL's names of parameters, `$1` instead of `?`."""
    number = 0

    def name(found: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return f"${found[1] or number}"

    return MARK.sub(name, statement)
