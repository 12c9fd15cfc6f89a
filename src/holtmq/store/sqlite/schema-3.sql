-- Version 3: what is kept for the sake of a management API.

-- Description, tags and the like of a vhost, as a JSON object.
ALTER TABLE vhosts ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';

-- RabbitMQ's runtime parameters; those that belong to no vhost have it and the component empty.
CREATE TABLE parameters (
    component  TEXT NOT NULL,
    vhost      TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (component, vhost, name)
) STRICT, WITHOUT ROWID;
