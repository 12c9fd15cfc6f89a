"""Damaged text in a SQLite file: it is read as far as possible, so that it does not hide what is around it."""

from __future__ import annotations

import sqlite3


def lenient_text(content: bytes) -> str:
    """Decode text that may be damaged. It is not as it was written then, so its checksum tells."""
    return content.decode(errors="replace")


class reading_damaged_text:  # noqa: N801  # used as a function
    """Let damaged text be read, instead of raising an error that would hide the messages around it.

    A class rather than a generator, because every pop passes here.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.text_factory = lenient_text

    def __exit__(self, *error: object) -> None:
        self._connection.text_factory = str
