"""Users and their permissions in a store."""

from __future__ import annotations

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.store.sql.sql_database import SqlDatabase

BROKER = ""
"""The name of a row in the table of users that marks a file which a broker has opened before. It is not a user."""
SET_USER = """
INSERT INTO users VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
SET password_hash = excluded.password_hash, hashing = excluded.hashing, tags = excluded.tags
"""
SET_PERMISSION = """
INSERT INTO permissions VALUES (?, ?, ?, ?, ?) ON CONFLICT ("user", vhost) DO UPDATE
SET configure = excluded.configure, write = excluded.write, read = excluded.read
"""
SET_TOPIC_PERMISSION = """
INSERT INTO topic_permissions VALUES (?, ?, ?, ?, ?) ON CONFLICT ("user", vhost, exchange) DO UPDATE
SET write = excluded.write, read = excluded.read
"""


class SqlAccounts:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    def load(self) -> tuple[list[User], list[Permission | TopicPermission]]:
        with self._database.lock() as connection:
            users = [
                User(name, password_hash, hashing, tuple(tag for tag in tags.split(",") if tag))
                for name, password_hash, hashing, tags in connection.execute(
                    "SELECT name, password_hash, hashing, tags FROM users"
                )
                if name != BROKER
            ]
            permissions: list[Permission | TopicPermission] = [
                Permission(*row) for row in connection.execute('SELECT "user", vhost, configure, write, read FROM permissions')
            ]
            permissions += [
                TopicPermission(*row)
                for row in connection.execute('SELECT "user", vhost, exchange, write, read FROM topic_permissions')
            ]
        return users, permissions

    def is_known_to_brokers(self) -> bool:
        """Whether a broker has opened this file before: then it has had its first users, whether or not any are left."""
        with self._database.lock() as connection:
            return connection.execute("SELECT 1 FROM users WHERE name = ?", (BROKER,)).fetchone() is not None

    def mark_known(self) -> None:
        self.set_user(User(BROKER))

    def set_user(self, user: User) -> None:
        values = (user.name, user.password_hash, user.hashing, ",".join(user.tags))
        self._execute(SET_USER, values)

    def remove_user(self, name: str) -> None:
        for statement in (
            "DELETE FROM users WHERE name = ?",
            'DELETE FROM permissions WHERE "user" = ?',
            'DELETE FROM topic_permissions WHERE "user" = ?',
        ):
            self._execute(statement, (name,))

    def set_permission(self, permission: Permission | TopicPermission) -> None:
        if isinstance(permission, Permission):
            values = (permission.user, permission.vhost, permission.configure, permission.write, permission.read)
            self._execute(SET_PERMISSION, values)
        else:
            values = (permission.user, permission.vhost, permission.exchange, permission.write, permission.read)
            self._execute(SET_TOPIC_PERMISSION, values)

    def remove_permission(self, permission: Permission | TopicPermission) -> None:
        if isinstance(permission, Permission):
            self._execute('DELETE FROM permissions WHERE ("user", vhost) = (?, ?)', (permission.user, permission.vhost))
        else:
            self._execute(
                'DELETE FROM topic_permissions WHERE ("user", vhost, exchange) = (?, ?, ?)',
                (permission.user, permission.vhost, permission.exchange),
            )

    def _execute(self, statement: str, values: tuple[str, ...]) -> None:
        with self._database.transaction() as connection:
            connection.execute(statement, values)
