-- What a broker finds in its file when it starts, each message with its delivery, brought into the order that it starts from.

-- Messages of queues that are gone, or did not outlive the broker.
DELETE FROM messages WHERE id IN (SELECT message_id FROM deliveries WHERE queue_id NOT IN (SELECT id FROM queues))
    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE message_id = messages.id AND queue_id IN (SELECT id FROM queues));
DELETE FROM deliveries WHERE queue_id NOT IN (SELECT id FROM queues);

-- Messages that were here only because memory was short.
DELETE FROM deliveries WHERE message_id IN (SELECT id FROM messages WHERE is_transient = 1);
DELETE FROM messages WHERE is_transient = 1;

-- Routing keys that no message has any more.
DELETE FROM routing_keys WHERE id NOT IN (SELECT key_id FROM deliveries);

-- What a consumer of the embedded library had locked is ready again.
UPDATE deliveries SET state = 0, due_at = NULL, locked_at = NULL WHERE state = 1;

-- The embedded library knows priorities in every queue, AMQP only up to x-max-priority.
UPDATE deliveries SET priority = (SELECT coalesce(json_extract(arguments, '$."x-max-priority"'), 0) FROM queues WHERE id = queue_id)
WHERE state = 0 AND priority > (SELECT coalesce(json_extract(arguments, '$."x-max-priority"'), 0) FROM queues WHERE id = queue_id);
