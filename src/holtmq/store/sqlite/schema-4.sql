-- Version 4: one set of queue rules.

-- Number of times that a message which names its queue here has returned to it, until its delivery is indexed.
ALTER TABLE messages ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
-- Finds the expired messages of all queues.
CREATE INDEX expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state = 0;
-- 1 for a queue whose x-delivery-limit may still mean the number of deliveries, as the embedded library wrote it before.
ALTER TABLE queues ADD COLUMN has_old_limit INTEGER NOT NULL DEFAULT 0;
UPDATE queues SET has_old_limit = 1 WHERE json_extract(arguments, '$."x-delivery-limit"') IS NOT NULL;
