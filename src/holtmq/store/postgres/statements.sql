-- The statements on messages. `$1` and so on are their parameters; each begins with a line that names it.
-- Every statement runs at "read committed": processes do not wait for each other, except where a queue has a limit.

-- name: append
-- Put a message into a queue. Nothing is inserted where topology or keys are of another version.
INSERT INTO deliveries (
    message_id, queue_id, state, priority, is_shared, attempts, size, key_id, created_at, due_at, expires_at,
    exchange, headers, properties, raw_properties, body, checksum
)
SELECT nextval('message_ids'), $1, CASE WHEN $2::bigint IS NULL THEN 0 ELSE 5 END, $3, 0, 0, length($4::bytea), $5, $6, $2, $7,
    $8, $9, $10, $11, $4, $12
FROM state WHERE topology_version = coalesce($13, topology_version) AND keys_version = coalesce($14, keys_version)
RETURNING message_id;

-- name: append_many
-- Put messages into a queue, with ids in their order.
INSERT INTO deliveries (
    message_id, queue_id, state, priority, is_shared, attempts, size, key_id, created_at, expires_at, exchange, properties, body,
    checksum
)
SELECT nextval('message_ids'), $1, 0, 0, 0, 0, length(body), key_id, $2, $3, '', properties, body, checksum
FROM unnest($4::bigint[], $5::text[], $6::bytea[], $7::bigint[]) WITH ORDINALITY AS given (key_id, properties, body, checksum, place)
ORDER BY place
RETURNING message_id;

-- name: share
-- Store the content of a message for several queues.
INSERT INTO messages VALUES (nextval('message_ids'), $1, $2, $3, $4, $5, $6, $7, $8) RETURNING id;

-- name: deliver
-- Put a message whose content is stored into a queue.
INSERT INTO deliveries (message_id, queue_id, state, priority, is_shared, attempts, size, key_id, created_at, due_at, expires_at)
VALUES ($1, $2, $3, $4, 1, 0, $5, $6, $7, $8, $9);

-- name: next_id
SELECT nextval('message_ids');

-- name: claim_first
-- Lock the first message of a queue, unless one is to be released before it, or it has expired. Alone, it does not wait for the
-- disk; in a transaction of the caller's, that one decides.
WITH head AS (
    SELECT message_id FROM deliveries
    WHERE queue_id = $1 AND state = 0 AND NOT EXISTS (SELECT FROM deliveries WHERE queue_id = $1 AND due_at <= $2)
    ORDER BY priority DESC, message_id LIMIT 1 FOR UPDATE SKIP LOCKED
){claimed};

-- name: claim_first_with_keys
-- The same for the first message with one of some keys, unless there are newer keys, which may match as well.
WITH head AS (
    SELECT message_id FROM deliveries
    WHERE message_id = ANY (ARRAY (
        SELECT heads.message_id FROM json_array_elements_text($6::json) AS wanted (key_id)
        CROSS JOIN LATERAL (
            SELECT message_id, priority FROM deliveries
            WHERE -queue_id = -$1::bigint AND state = 0 AND key_id = wanted.key_id::bigint
            ORDER BY priority DESC, message_id LIMIT 8
        ) AS heads
        ORDER BY heads.priority DESC, heads.message_id LIMIT 8
    )) AND queue_id = $1 AND state + 0 = 0 AND NOT EXISTS (SELECT FROM deliveries WHERE queue_id = $1 AND due_at <= $2)
        AND (SELECT max(id) FROM routing_keys) <= $5
    ORDER BY priority DESC, message_id LIMIT 1 FOR UPDATE SKIP LOCKED
){claimed};

-- name: claim_first_among
-- The same for the first of some messages, which were found by looking at the keys that there were.
WITH head AS (
    SELECT message_id FROM deliveries
    WHERE message_id = ANY ($6::bigint[]) AND queue_id = $1 AND state + 0 = 0
        AND NOT EXISTS (SELECT FROM deliveries WHERE queue_id = $1 AND due_at <= $2)
        AND (SELECT max(id) FROM routing_keys) <= $5
    ORDER BY priority DESC, message_id LIMIT 1 FOR UPDATE SKIP LOCKED
){claimed};

-- name: ready
-- The first ready messages that no other transaction is about to lock. They are locked until the end of this one.
SELECT message_id, attempts FROM deliveries
WHERE queue_id = $1 AND state = 0 ORDER BY priority DESC, message_id LIMIT $2 FOR UPDATE SKIP LOCKED;

-- name: ready_among
-- Those of some messages that are still ready, and that no other transaction is about to lock.
SELECT message_id, attempts FROM deliveries
WHERE message_id = ANY ($2::bigint[]) AND queue_id = $1 AND state + 0 = 0
ORDER BY priority DESC, message_id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: ready_with_keys
-- The first ready messages with some keys. The cost depends on the number of keys, not on the backlog.
SELECT heads.message_id FROM json_array_elements_text($1::json) AS wanted (key_id)
CROSS JOIN LATERAL (
    SELECT message_id, priority FROM deliveries WHERE -queue_id = -$2::bigint AND state = 0 AND key_id = wanted.key_id::bigint
    ORDER BY priority DESC, message_id LIMIT $3
) AS heads
ORDER BY heads.priority DESC, heads.message_id LIMIT $3;

-- name: ready_in_order
SELECT message_id, key_id FROM deliveries
WHERE queue_id = $1 AND state = 0 ORDER BY priority DESC, message_id LIMIT $2 OFFSET $3;

-- name: lock
WITH locked AS (
    UPDATE deliveries SET state = 1, attempts = attempts + 1, due_at = $3, locked_at = $4
    WHERE queue_id = $1 AND message_id = ANY ($2::bigint[])
    RETURNING *
)
SELECT {columns} FROM locked {joins} ORDER BY locked.priority DESC, message_id;

-- name: read
SELECT {columns} FROM deliveries AS locked {joins} WHERE queue_id = $1 AND message_id = ANY ($2::bigint[]);

-- name: find
SELECT {columns} FROM deliveries AS locked {joins}
WHERE message_id = ANY (ARRAY ({in_states})) AND queue_id = $1 AND ($3::bigint IS NULL OR locked_at < $3)
ORDER BY message_id LIMIT $4;

-- name: release_due
-- Make delayed messages and those with an expired lease ready. Return them, and whether they were locked too often.
WITH due AS (
    SELECT message_id, state FROM deliveries WHERE queue_id = $1 AND due_at <= $2 FOR UPDATE SKIP LOCKED
), released AS (
    UPDATE deliveries SET state = 0, due_at = NULL, locked_at = NULL
    WHERE message_id = ANY (ARRAY (SELECT message_id FROM due)) AND queue_id = $1
    RETURNING message_id, attempts
)
SELECT message_id, due.state = 1 AND attempts > $3 FROM released JOIN due USING (message_id);

-- name: next_due
SELECT min(due_at) FROM deliveries WHERE queue_id = $1 AND due_at IS NOT NULL;

-- name: count
SELECT 0, count(*) FROM deliveries WHERE queue_id = $1 AND state = 0
UNION ALL SELECT state, count(*) FROM deliveries WHERE queue_id = $1 AND due_at IS NOT NULL AND state IN (1, 5) GROUP BY state
UNION ALL SELECT state, count(*) FROM deliveries WHERE queue_id = $1 AND settled_at IS NOT NULL AND state > 1 AND state <> 5
GROUP BY state;

-- name: measure
SELECT count(*), coalesce(sum(size), 0)::bigint FROM deliveries WHERE queue_id = $1 AND state = 0;

-- name: head
SELECT message_id, expires_at FROM deliveries
WHERE queue_id = $1 AND state = 0 AND priority = $2 ORDER BY message_id LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: queues_with_expired
SELECT DISTINCT queue_id FROM deliveries WHERE (CASE WHEN state = 0 THEN expires_at END) < $1;

-- name: next_expiry
SELECT min(CASE WHEN state = 0 THEN expires_at END) FROM deliveries WHERE (CASE WHEN state = 0 THEN expires_at END) >= $1;

-- name: remove_one_mine
-- As `remove_mine`, in two thirds of the time: most acknowledgements are of one message.
WITH gone AS (
    DELETE FROM deliveries WHERE message_id = $2 AND queue_id = $1 AND state = 1 AND attempts = $3 RETURNING message_id, is_shared
){freed}
SELECT message_id, is_shared FROM gone;

-- name: remove_mine
-- Remove messages that the caller has locked. Return them, and whether `messages` has their content.
WITH gone AS (
    DELETE FROM deliveries WHERE {mine} RETURNING message_id, is_shared
){freed}
SELECT message_id, is_shared FROM gone;

-- name: remove
WITH gone AS (
    DELETE FROM deliveries WHERE queue_id = $1 AND message_id = ANY ($2::bigint[]) RETURNING message_id, is_shared
){freed}
SELECT message_id, is_shared FROM gone;

-- name: delete
-- Remove the messages in the given states, optionally only those settled before a time. Return their number, and which of them
-- have their content in `messages`.
WITH gone AS (
    DELETE FROM deliveries
    WHERE message_id = ANY (ARRAY ({in_states})) AND queue_id = $1 AND state = ANY ($2::smallint[])
        AND ($3::bigint IS NULL OR settled_at < $3)
    RETURNING message_id, is_shared
){freed}
SELECT count(*), array_agg(message_id) FILTER (WHERE is_shared = 1) FROM gone;

-- name: free
-- Remove the content of messages that no queue has any more.
DELETE FROM messages WHERE id = ANY ($1::bigint[]) AND copies <= 0;

-- name: give_back_mine
UPDATE deliveries SET state = 0, attempts = attempts - 1, due_at = NULL, locked_at = NULL WHERE {mine};

-- name: is_mine
SELECT 1 FROM deliveries WHERE message_id = $1 AND queue_id = $2 AND state = 1 AND attempts = $3 FOR UPDATE;

-- name: settle_mine
UPDATE deliveries SET state = $4, due_at = $5, settled_at = $6
WHERE message_id = $1 AND queue_id = $2 AND state = 1 AND attempts = $3;

-- name: hold
SELECT 1 FROM deliveries WHERE queue_id = $1 AND message_id = $2 FOR UPDATE;

-- name: set_state
UPDATE deliveries SET state = $3, due_at = $4, settled_at = $5, locked_at = NULL WHERE message_id = $1 AND queue_id = $2;

-- name: long_done
SELECT message_id FROM deliveries WHERE queue_id = $1 AND state = 2 AND settled_at < $2 LIMIT 10;

-- name: unused
DELETE FROM messages WHERE copies <= 0;

-- name: export
-- All messages in their order, each once for every queue.
SELECT message_id, routing_keys.key, deliveries.created_at, coalesce(deliveries.exchange, messages.exchange),
    coalesce(deliveries.headers, messages.headers), coalesce(deliveries.properties, messages.properties),
    coalesce(deliveries.raw_properties, messages.raw_properties), coalesce(deliveries.body, messages.body),
    coalesce(deliveries.checksum, messages.checksum), queue_id, state, priority, attempts, due_at, expires_at, locked_at,
    settled_at
FROM deliveries LEFT JOIN messages ON is_shared = 1 AND messages.id = message_id
LEFT JOIN routing_keys ON routing_keys.id = deliveries.key_id
WHERE message_id > ? ORDER BY message_id, queue_id;

-- name: restore_contents
COPY messages (id, copies, key_id, exchange, headers, properties, raw_properties, body, checksum) FROM STDIN;

-- name: restore_deliveries
COPY deliveries (
    message_id, is_shared, size, key_id, created_at, queue_id, state, priority, attempts, due_at, expires_at, locked_at, settled_at,
    exchange, headers, properties, raw_properties, body, checksum
) FROM STDIN;

-- name: continue_ids
SELECT setval('message_ids', greatest((SELECT max(message_id) FROM deliveries), nextval('message_ids'))),
    setval(pg_get_serial_sequence('queues', 'id'), (SELECT max(id) FROM queues)),
    setval(pg_get_serial_sequence('bindings', 'id'), (SELECT max(id) FROM bindings));
