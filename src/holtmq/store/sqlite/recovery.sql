-- Tidies up the rows of the embedded library, and of brokers before version 7, when a broker starts. Every message has its
-- deliveries by now. Those that are ready are then moved into the log.

-- Messages of deleted queues, and of queues that did not survive the broker.
DELETE FROM messages WHERE id IN (SELECT message_id FROM deliveries WHERE queue_id NOT IN (SELECT id FROM queues))
    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE message_id = messages.id AND queue_id IN (SELECT id FROM queues));
DELETE FROM deliveries WHERE queue_id NOT IN (SELECT id FROM queues);

-- Transient messages, which were paged to the file for lack of memory.
DELETE FROM deliveries WHERE message_id IN (SELECT id FROM messages WHERE is_transient = 1);
DELETE FROM messages WHERE is_transient = 1;

-- Messages that the embedded library had locked are ready again.
UPDATE deliveries SET state = 0, due_at = NULL, locked_at = NULL WHERE state = 1;

-- Before version 4, the embedded library had priorities in every queue, not only up to x-max-priority.
UPDATE deliveries SET priority = (SELECT coalesce(json_extract(arguments, '$."x-max-priority"'), 0) FROM queues WHERE id = queue_id)
WHERE state = 0 AND priority > (SELECT coalesce(json_extract(arguments, '$."x-max-priority"'), 0) FROM queues WHERE id = queue_id);
