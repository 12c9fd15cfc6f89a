-- A HoltMQ file, version 1. A change to this schema is a new step in database.py; this text is never edited in place.

-- What every process that has the file open must notice.
CREATE TABLE state (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    topology_version  INTEGER NOT NULL,  -- grows when exchanges, queues or bindings change
    keys_version      INTEGER NOT NULL,  -- grows when routing keys are removed
    order_version     INTEGER NOT NULL,  -- grows when a message becomes ready that is not the last in its queue's order
    indexed_to        INTEGER NOT NULL   -- messages put directly have their delivery up to this id
) STRICT;
INSERT INTO state VALUES (1, 1, 1, 1, 0);

-- The topology. Tables of arguments are JSON with sorted keys, without loss of type (table_json.py).
CREATE TABLE exchanges (
    vhost        TEXT NOT NULL,
    name         TEXT NOT NULL,
    type         TEXT NOT NULL,
    durable      INTEGER NOT NULL,
    auto_delete  INTEGER NOT NULL,
    internal     INTEGER NOT NULL,
    arguments    TEXT NOT NULL,
    PRIMARY KEY (vhost, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE queues (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    vhost        TEXT NOT NULL,
    name         TEXT NOT NULL,
    durable      INTEGER NOT NULL,
    auto_delete  INTEGER NOT NULL,
    exclusive    INTEGER NOT NULL,
    arguments    TEXT NOT NULL,
    UNIQUE (vhost, name)
) STRICT;

CREATE TABLE bindings (
    id                INTEGER PRIMARY KEY,
    vhost             TEXT NOT NULL,
    source            TEXT NOT NULL,
    destination_type  TEXT NOT NULL,
    destination       TEXT NOT NULL,
    routing_key       TEXT NOT NULL,
    arguments         TEXT NOT NULL,
    created_at        TEXT,
    metadata          TEXT NOT NULL,
    UNIQUE (vhost, source, destination_type, destination, routing_key, arguments)
) STRICT;

-- Routing keys, each once, with their words for look-up by pattern.
CREATE TABLE routing_keys (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    key  TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE key_segments (
    key_id            INTEGER NOT NULL REFERENCES routing_keys ON DELETE CASCADE,
    segment_position  INTEGER NOT NULL,
    segment_value     TEXT NOT NULL,
    PRIMARY KEY (key_id, segment_position)
) STRICT, WITHOUT ROWID;
CREATE INDEX segments_by_value ON key_segments (segment_value, segment_position, key_id);

-- A message, once, however many queues it is in. Ids only ever grow: they are the order of arrival.
-- One put straight into a queue names it here; its delivery is made when somebody looks (state.indexed_to).
CREATE TABLE messages (
    id          INTEGER PRIMARY KEY,
    queue_id    INTEGER,
    exchange    TEXT NOT NULL,
    key_id      INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,  -- this and all other times: milliseconds since 1970
    due_at      INTEGER,           -- when a delayed message becomes available
    expires_at  INTEGER,
    headers     TEXT,
    properties  TEXT,
    body        BLOB NOT NULL
) STRICT;

-- A message in a queue.
CREATE TABLE deliveries (
    message_id  INTEGER NOT NULL,
    queue_id    INTEGER NOT NULL,
    state       INTEGER NOT NULL,  -- 0 ready, 1 locked, 2 done, 3 failed, 4 dead, 5 delayed
    priority    INTEGER NOT NULL,
    key_id      INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    due_at      INTEGER,           -- locked: when the lease runs out; delayed: when it becomes ready
    expires_at  INTEGER,
    locked_at   INTEGER,
    settled_at  INTEGER,
    PRIMARY KEY (message_id, queue_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX ready ON deliveries (queue_id, priority DESC, message_id) WHERE state = 0;
CREATE INDEX ready_by_key ON deliveries (queue_id, key_id, priority DESC, message_id) WHERE state = 0;
CREATE INDEX timers ON deliveries (queue_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX settled ON deliveries (queue_id, state, settled_at) WHERE settled_at IS NOT NULL;

-- The words of each message's routing key.
CREATE VIEW routing_segments (message_id, segment_position, segment_value) AS
SELECT messages.id, key_segments.segment_position, key_segments.segment_value
FROM messages JOIN key_segments ON key_segments.key_id = messages.key_id;
