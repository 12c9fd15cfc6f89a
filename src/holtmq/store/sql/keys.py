"""Routing keys in a store, each stored once, and the lookup of those that match a pattern, with the router's own matcher.

Lookups are cached. A pattern that was used before only has to check the keys that are new since then.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holtmq.routing.pattern import split
from holtmq.routing.topic import TopicMatcher
from holtmq.store.sql.sql_database import Connection, SqlDatabase
from holtmq.topology import Binding

COUNT_PLACED = """
SELECT count(*) FROM (SELECT 1 FROM key_segments WHERE segment_value = ? AND segment_position = ? LIMIT 1000) AS found
"""
FIND_KEY = "SELECT id FROM routing_keys WHERE key = ?"
ADD_KEY = "INSERT INTO routing_keys (key) VALUES (?) RETURNING id"
KEYS = -1
"""Stands for the routing keys in `serialize`."""
KEYS_KEPT = 100_000
PATTERNS_KEPT = 1_000


class RoutingKeys:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._version = 0
        self.ids: dict[str, int] = {}
        """The ids of known keys."""
        self._patterns: OrderedDict[tuple[str, ...], KeyPattern] = OrderedDict()

    def intern(self, key: str) -> int:
        """Return the id of a key, adding the key if it is new. It is durable when the message that uses it is."""
        found = self.ids.get(key)
        if found is not None:
            return found
        with self._database.lazy_transaction() as connection:
            row = connection.execute(FIND_KEY, (key,)).fetchone()
            if row is None:
                self._database.serialize(KEYS)  # so that keys are seen in the order of their ids
                row = connection.execute(FIND_KEY, (key,)).fetchone()
            if row is None:
                row = connection.execute(ADD_KEY, (key,)).fetchone()
                connection.executemany(
                    "INSERT INTO key_segments VALUES (?, ?, ?)", [(row[0], at, word) for at, word in enumerate(split(key))]
                )
        self._remember(key, row[0])
        return int(row[0])

    def matching(self, patterns: Sequence[str]) -> KeyPattern:
        """Return the keys in the file that match any of the patterns."""
        name = tuple(patterns)
        found = self._patterns.get(name)
        if found is None:
            found = self._patterns[name] = KeyPattern(name)
            if len(self._patterns) > PATTERNS_KEPT:
                self._patterns.popitem(last=False)
        self._patterns.move_to_end(name)
        with self._database.lock() as connection:
            (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM routing_keys").fetchone()
            if newest > found.seen_to:
                candidates = {row for pattern in patterns for row in _candidates(connection, split(pattern), found.seen_to)}
                found.take(sorted(candidates), newest)
        return found

    def known(self, patterns: Sequence[str]) -> KeyPattern | None:
        """Return the keys that were found last time, without looking for newer ones."""
        name = tuple(patterns)
        found = self._patterns.get(name)
        if found is not None:
            self._patterns.move_to_end(name)
        return found

    def forget(self) -> None:
        """Clear the cache, after a rollback or after keys were removed."""
        self.ids.clear()
        self._patterns.clear()

    def follow(self, version: int) -> None:
        """Clear the cache if keys were removed from the file, by this process or another."""
        if version != self._version:
            self.forget()
            self._version = version

    def remove_unused(self) -> int:
        """Remove the keys that no message has, and return their number."""
        with self._database.transaction() as connection:
            self._database.exclude_puts()
            removed = connection.execute(
                "DELETE FROM routing_keys WHERE id NOT IN (SELECT key_id FROM messages UNION SELECT key_id FROM deliveries)"
            ).rowcount
            connection.execute("UPDATE state SET keys_version = keys_version + 1")
        self.forget()
        return removed

    def _remember(self, key: str, key_id: int) -> None:
        if len(self.ids) >= KEYS_KEPT:
            self.ids.clear()
        self.ids[key] = key_id


class Frontier(NamedTuple):
    """A position in the order of a queue's ready messages, valid until a message becomes ready before it."""

    order_version: int
    priority: int
    message_id: int


class KeyPattern:
    """One or several patterns used together, with the matching keys found so far."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.key_ids: list[int] = []
        self.as_set: set[int] = set()
        self.as_json = "[]"
        self.seen_to = 0
        self.frontiers: dict[int, Frontier] = {}
        """By queue: the position before which no ready message has one of these keys."""
        self.depths: dict[int, int] = {}
        """By queue: how many ready messages were before the first one with one of these keys, when it was last looked for."""
        self._matcher = TopicMatcher()
        for pattern in dict.fromkeys(patterns):
            self._matcher.add(Binding("", "", pattern))

    def take(self, candidates: Sequence[tuple[int, str]], newest: int) -> None:
        self.seen_to = newest
        fitting = [key_id for key_id, key in candidates if self._matcher.match(key, {})]
        if fitting:
            self.frontiers.clear()
            self.key_ids += fitting
            self.as_set.update(fitting)
            self.as_json = json.dumps(self.key_ids)


def _candidates(connection: Connection, words: Sequence[str], seen_to: int) -> Iterable[tuple[int, str]]:
    """Return new keys that may match a pattern: those with its rarest word in place, or with a word anywhere, or all."""
    keys = "SELECT routing_keys.id, routing_keys.key FROM routing_keys"
    known_places = words[: words.index("#")] if "#" in words else words
    placed = [(word, at) for at, word in enumerate(known_places) if word != "*"]
    if placed:
        word, at = (
            min(placed, key=lambda place: connection.execute(COUNT_PLACED, place).fetchone()[0]) if placed[1:] else placed[0]
        )
        by_place = " JOIN key_segments ON key_id = id WHERE segment_value = ? AND segment_position = ? AND key_id > ?"
        return connection.execute(keys + by_place, (word, at, seen_to))
    anywhere = next((word for word in words if word not in ("*", "#")), None)
    if anywhere is not None:
        by_word = " WHERE id IN (SELECT key_id FROM key_segments WHERE segment_value = ? AND key_id > ?)"
        return connection.execute(keys + by_word, (anywhere, seen_to))
    return connection.execute(keys + " WHERE id > ?", (seen_to,))
