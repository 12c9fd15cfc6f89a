-- Version 5: how far each queue was delivered, by priority.

-- Messages of the queue with this priority may have been seen by a consumer, up to this id.
CREATE TABLE delivery_marks (
    queue_id  INTEGER NOT NULL,
    priority  INTEGER NOT NULL,
    up_to     INTEGER NOT NULL,
    PRIMARY KEY (queue_id, priority)
) STRICT, WITHOUT ROWID;
INSERT INTO delivery_marks
WITH RECURSIVE priorities (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM priorities WHERE number < 255)
SELECT id, number, delivered_to FROM queues
JOIN priorities ON number <= coalesce(json_extract(arguments, '$."x-max-priority"'), 0)
WHERE delivered_to > 0;
ALTER TABLE queues DROP COLUMN delivered_to;
