-- Version 4: one set of queue rules.

-- How often a message that names its queue here was claimed or delivered and came back, before its delivery is indexed.
ALTER TABLE messages ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
-- Messages that expire, so that the embedded library finds those that are due in any queue.
CREATE INDEX expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state = 0;
