"""Routing keys in the file, each once, and which of them a pattern fits: the same patterns, by the same trie, as the router's.

What was looked up is kept; a pattern that was asked for before costs one look at the keys that are new since then.
"""

from __future__ import annotations

import json
from collections import OrderedDict

from holtmq.routing.pattern import split
from holtmq.routing.topic import TopicMatcher
from holtmq.store.database import Database
from holtmq.topology import Binding

KEYS_KEPT = 100_000
PATTERNS_KEPT = 1_000


class RoutingKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._version = 0
        self._ids: dict[str, int] = {}
        self._patterns: OrderedDict[str, _Pattern] = OrderedDict()

    def intern(self, key: str) -> int:
        """The id of a key, which is added if it is new. Within a transaction."""
        found = self._ids.get(key)
        if found is not None:
            return found
        with self._database.transaction() as connection:
            row = connection.execute("SELECT id FROM routing_keys WHERE key = ?", (key,)).fetchone()
            if row is None:
                row = connection.execute("INSERT INTO routing_keys (key) VALUES (?) RETURNING id", (key,)).fetchone()
                connection.executemany(
                    "INSERT INTO key_segments VALUES (?, ?, ?)", [(row[0], at, word) for at, word in enumerate(split(key))]
                )
        self._remember(key, row[0])
        return int(row[0])

    def matching(self, pattern: str) -> _Pattern:
        """The ids of the keys that a pattern fits, among those in the file now."""
        found = self._patterns.get(pattern)
        if found is None:
            found = self._patterns[pattern] = _Pattern(pattern)
            if len(self._patterns) > PATTERNS_KEPT:
                self._patterns.popitem(last=False)
        self._patterns.move_to_end(pattern)
        with self._database.lock() as connection:
            (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM routing_keys").fetchone()
            if newest > found.seen_to:
                candidates = connection.execute(*found.candidates())
                found.take(candidates.fetchall(), newest)
        return found

    def forget(self) -> None:
        """Drop all that was kept: the transaction that it was seen in may be undone, or keys were removed."""
        self._ids.clear()
        self._patterns.clear()

    def follow(self, version: int) -> None:
        """Notice that keys were removed from the file, here or elsewhere."""
        if version != self._version:
            self.forget()
            self._version = version

    def remove_unused(self) -> int:
        """Remove the keys that no message has any more."""
        with self._database.transaction() as connection:
            removed = connection.execute(
                "DELETE FROM routing_keys WHERE id NOT IN (SELECT key_id FROM messages UNION SELECT key_id FROM deliveries)"
            ).rowcount
            connection.execute("UPDATE state SET keys_version = keys_version + 1")
        self.forget()
        return removed

    def _remember(self, key: str, key_id: int) -> None:
        if len(self._ids) >= KEYS_KEPT:
            self._ids.clear()
        self._ids[key] = key_id


class _Pattern:
    """A pattern, and the keys that it fits as far as the file was seen."""

    def __init__(self, pattern: str) -> None:
        self.key_ids: list[int] = []
        self.as_set: set[int] = set()
        self.as_json = "[]"
        self.seen_to = 0
        self._words = split(pattern)
        self._matcher = TopicMatcher()
        self._matcher.add(Binding("", "", pattern))

    def candidates(self) -> tuple[str, tuple[object, ...]]:
        """The query for new keys that may fit: by a word at a known place, by a word anywhere, or all of them."""
        query = "SELECT routing_keys.id, routing_keys.key FROM routing_keys"
        for at, word in enumerate(self._words):
            if word == "#":
                break
            if word != "*":
                by_place = " JOIN key_segments ON key_id = id WHERE segment_value = ? AND segment_position = ? AND key_id > ?"
                return query + by_place, (word, at, self.seen_to)
        for word in self._words:
            if word not in ("*", "#"):
                anywhere = " WHERE id IN (SELECT key_id FROM key_segments WHERE segment_value = ? AND key_id > ?)"
                return query + anywhere, (word, self.seen_to)
        return query + " WHERE id > ?", (self.seen_to,)

    def take(self, candidates: list[tuple[int, str]], newest: int) -> None:
        self.seen_to = newest
        fitting = [key_id for key_id, key in candidates if self._matcher.match(key, {})]
        if fitting:
            self.key_ids += fitting
            self.as_set.update(fitting)
            self.as_json = json.dumps(self.key_ids)
