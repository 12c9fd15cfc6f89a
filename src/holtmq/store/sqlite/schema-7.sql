-- Version 7: the broker's log. Messages are packed into chunks (store/chunk.py) instead of having a row each.

CREATE TABLE log_chunks (
    id            INTEGER PRIMARY KEY,
    is_transient  INTEGER NOT NULL,  -- 1 if its messages are here only because memory was short; they do not outlive the broker
    header        BLOB NOT NULL,     -- ids, lengths, checksums and origins of the messages
    content       BLOB NOT NULL      -- the messages themselves
) STRICT;
CREATE INDEX transient_chunks ON log_chunks (id) WHERE is_transient = 1;

-- A chunk in a queue: all of its messages, except those that have left the queue.
CREATE TABLE log_slices (
    queue_id      INTEGER NOT NULL,
    priority      INTEGER NOT NULL,
    first_id      INTEGER NOT NULL,  -- ids of the first and the last message of the chunk
    chunk_id      INTEGER NOT NULL,
    last_id       INTEGER NOT NULL,
    number        INTEGER NOT NULL,  -- messages that are in the queue, and the bytes of their bodies
    size          INTEGER NOT NULL,
    next_expiry   INTEGER,
    is_shared     INTEGER NOT NULL,  -- 1 if other queues may have a slice of the chunk, too
    is_transient  INTEGER NOT NULL,
    gone          BLOB,              -- a bit for each message of the chunk that has left the queue, lowest first
    expiries      BLOB,              -- if any message expires: 8 bytes for each, 0 if it does not
    returns       TEXT,              -- JSON: how often messages have returned to the queue, by id
    PRIMARY KEY (queue_id, priority, first_id, chunk_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX slices_of_shared_chunks ON log_slices (chunk_id) WHERE is_shared = 1;
