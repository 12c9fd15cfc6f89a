-- The statements on messages that have a row each, as a broker sees them. Nobody else uses the schema meanwhile.

-- name: drop_orphans
WITH gone AS (
    DELETE FROM deliveries WHERE queue_id NOT IN (SELECT id FROM queues) RETURNING message_id, is_shared
), freed AS (
    UPDATE messages SET copies = copies - number
    FROM (SELECT message_id, count(*) AS number FROM gone WHERE is_shared = 1 GROUP BY message_id) AS shared
    WHERE id = message_id
)
SELECT count(*) FROM gone;

-- name: unlock
UPDATE deliveries SET state = 0, due_at = NULL, locked_at = NULL WHERE state = 1;

-- name: last_id
SELECT greatest(last_value, (SELECT coalesce(max(message_id), 0) FROM deliveries)) FROM message_ids;

-- name: next_queue_id
-- A broker numbers its queues itself, from here on. The library continues far behind them.
SELECT setval(sequence, nextval(sequence) + (1::bigint << 32)) - (1::bigint << 32)
FROM pg_get_serial_sequence('queues', 'id') AS sequence;

-- name: next_ready
SELECT message_id, size FROM deliveries WHERE state = 0 AND message_id > $1 ORDER BY message_id LIMIT $2;

-- name: ready_rows
{rows} WHERE state = 0 AND message_id > $1 AND message_id <= $2 ORDER BY message_id;

-- name: drop_ready
WITH gone AS (
    DELETE FROM deliveries WHERE state = 0 AND message_id > $1 AND message_id <= $2 RETURNING message_id, is_shared
)
UPDATE messages SET copies = copies - number
FROM (SELECT message_id, count(*) AS number FROM gone WHERE is_shared = 1 GROUP BY message_id) AS shared
WHERE id = message_id;

-- name: free_range
DELETE FROM messages WHERE id > $1 AND id <= $2 AND copies <= 0;

-- name: unpack_shared
INSERT INTO messages VALUES ($1, $2, $3, $4, NULL, NULL, $5, $6, $7) ON CONFLICT DO NOTHING;

-- name: unpack_delivery
INSERT INTO deliveries (
    message_id, queue_id, state, priority, is_shared, attempts, size, key_id, created_at, expires_at, exchange, raw_properties,
    body, checksum
)
VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT DO NOTHING;

-- name: skip_ids
SELECT setval('message_ids', greatest(nextval('message_ids'), (SELECT coalesce(max(message_id), 0) + 1 FROM deliveries)));

-- name: due
{rows} WHERE state = 5 AND locked.due_at > $1 AND locked.due_at <= $2;

-- name: next_due
SELECT min(due_at) FROM deliveries WHERE state = 5 AND due_at > $1;

-- name: forget_some
WITH gone AS (
    DELETE FROM deliveries WHERE queue_id = $1 AND message_id IN (
        SELECT message_id FROM deliveries WHERE queue_id = $1 LIMIT $2
    )
    RETURNING message_id, is_shared
), freed AS (
    UPDATE messages SET copies = copies - 1 FROM gone WHERE id = message_id AND is_shared = 1
)
SELECT message_id, is_shared FROM gone;

-- name: set_aside
UPDATE deliveries SET state = 6, due_at = NULL, locked_at = NULL,
    settled_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
WHERE message_id = $1 AND queue_id = $2;

-- name: keep_damaged
INSERT INTO deliveries (message_id, queue_id, state, priority, is_shared, attempts, size, key_id, created_at, exchange, body)
VALUES ($1, $2, 6, 0, 0, 0, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING;
