-- Version 2: what a broker keeps.

-- The properties of a message as AMQP spells them, flags first; `headers` and `properties` are then empty.
ALTER TABLE messages ADD COLUMN raw_properties BLOB;
-- 1 for a message that is here only because memory was short; it does not outlive the broker.
ALTER TABLE messages ADD COLUMN is_transient INTEGER;
CREATE INDEX transient_messages ON messages (id) WHERE is_transient = 1;
-- Messages of the queue up to this id may have been seen by a consumer.
ALTER TABLE queues ADD COLUMN delivered_to INTEGER NOT NULL DEFAULT 0;

CREATE TABLE vhosts (
    name  TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
INSERT INTO vhosts VALUES ('/');

CREATE TABLE policies (
    vhost       TEXT NOT NULL,
    name        TEXT NOT NULL,
    pattern     TEXT NOT NULL,
    apply_to    TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    definition  TEXT NOT NULL,
    PRIMARY KEY (vhost, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    name           TEXT PRIMARY KEY,
    password_hash  TEXT NOT NULL,
    hashing        TEXT NOT NULL,
    tags           TEXT NOT NULL  -- separated by commas
) STRICT, WITHOUT ROWID;

CREATE TABLE permissions (
    user       TEXT NOT NULL,
    vhost      TEXT NOT NULL,
    configure  TEXT NOT NULL,
    write      TEXT NOT NULL,
    read       TEXT NOT NULL,
    PRIMARY KEY (user, vhost)
) STRICT, WITHOUT ROWID;

CREATE TABLE topic_permissions (
    user      TEXT NOT NULL,
    vhost     TEXT NOT NULL,
    exchange  TEXT NOT NULL,
    write     TEXT NOT NULL,
    read      TEXT NOT NULL,
    PRIMARY KEY (user, vhost, exchange)
) STRICT, WITHOUT ROWID;
