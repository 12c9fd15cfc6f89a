-- Version 4: one set of queue rules.

-- Number of times that a message which names its queue here has returned to it, until its delivery is indexed.
ALTER TABLE messages ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
-- Finds the expired messages of all queues.
CREATE INDEX expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state = 0;
