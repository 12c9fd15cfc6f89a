-- Version 8: streams. Messages stay in their order, packed into chunks (store/stream_chunk.py), until retention removes a chunk.

-- Where each chunk is. The last chunk of a stream is never removed: the next offset follows from it.
CREATE TABLE stream_chunks (
    queue_id      INTEGER NOT NULL,
    first_offset  INTEGER NOT NULL,
    number        INTEGER NOT NULL,  -- messages, and the bytes that they take in stream_contents
    size          INTEGER NOT NULL,
    total_size    INTEGER NOT NULL,  -- bytes of all chunks of the stream up to this one, and their number, removed ones included
    total_chunks  INTEGER NOT NULL,
    first_at      INTEGER NOT NULL,  -- when its first and its last message were appended, in milliseconds since 1970
    last_at       INTEGER NOT NULL,
    chunk_id      INTEGER NOT NULL,
    PRIMARY KEY (queue_id, first_offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX stream_chunks_by_time ON stream_chunks (queue_id, last_at);

CREATE TABLE stream_contents (
    id       INTEGER PRIMARY KEY,
    header   BLOB NOT NULL,  -- lengths, checksums, times, origins and properties of the messages
    content  BLOB NOT NULL   -- their bodies
) STRICT;

-- The highest publishing id of each publisher that numbers its messages.
CREATE TABLE stream_publishers (
    queue_id   INTEGER NOT NULL,
    publisher  TEXT NOT NULL,
    last_id    INTEGER NOT NULL,
    PRIMARY KEY (queue_id, publisher)
) STRICT, WITHOUT ROWID;

-- How far named readers have come.
CREATE TABLE stream_positions (
    queue_id     INTEGER NOT NULL,
    name         TEXT NOT NULL,
    next_offset  INTEGER NOT NULL,
    PRIMARY KEY (queue_id, name)
) STRICT, WITHOUT ROWID;
