-- What a broker finds in its file when it starts, brought into the order that it starts from.

-- Messages that were here only because memory was short, and those of queues that did not outlive the broker.
DELETE FROM messages WHERE id IN (SELECT message_id FROM deliveries WHERE queue_id < 0 AND state = 0)
    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE message_id = messages.id AND queue_id > 0);
DELETE FROM deliveries WHERE queue_id < 0 AND state = 0;
DELETE FROM deliveries WHERE message_id IN (SELECT id FROM messages WHERE is_transient = 1);
DELETE FROM messages WHERE is_transient = 1;

-- Messages that were appended for a queue which is gone.
DELETE FROM messages WHERE id > (SELECT indexed_to FROM state) AND queue_id IS NOT NULL
    AND queue_id NOT IN (SELECT id FROM queues);

-- All others get their place in the index.
INSERT INTO deliveries
SELECT id, queue_id, CASE WHEN due_at IS NULL THEN 0 ELSE 5 END, priority, key_id, 0, due_at, expires_at, NULL, NULL
FROM messages WHERE id > (SELECT indexed_to FROM state) AND queue_id IS NOT NULL;
UPDATE state SET indexed_to = max(indexed_to, (SELECT coalesce(max(id), 0) FROM messages));

-- Routing keys that no message has any more.
DELETE FROM routing_keys WHERE id NOT IN (SELECT key_id FROM deliveries);

-- What a consumer of the embedded library had locked is ready again.
UPDATE deliveries SET state = 0, due_at = NULL, locked_at = NULL WHERE state = 1;

-- The embedded library knows priorities in every queue, AMQP only up to x-max-priority.
UPDATE deliveries SET priority = (SELECT coalesce(json_extract(arguments, '$."x-max-priority"'), 0) FROM queues WHERE id = queue_id)
WHERE state = 0 AND priority > (SELECT coalesce(json_extract(arguments, '$."x-max-priority"'), 0) FROM queues WHERE id = queue_id);
