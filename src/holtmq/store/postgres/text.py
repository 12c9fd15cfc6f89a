"""Text that PostgreSQL cannot store as it is: NUL characters, and bytes that are not UTF-8 (lone surrogates in Python).

AMQP allows both in names, keys and headers. They are escaped on the way to the database and back on the way from it, for
every parameter and every column. An escape has two bytes, so that the longest names still fit into an index.
"""

from __future__ import annotations

import re

from psycopg.abc import AdaptContext
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.types.string import StrDumper, StrDumperUnknown

ESCAPE, BYTE, SURROGATE = "\x01", "\x02", "\x03"
"""What an escape begins with: one of the characters below, a byte that is not UTF-8, or half of a character of UTF-16."""
NAMED = {"\0": "0", ESCAPE: "1", BYTE: "2", SURROGATE: "3", "\udc80": "4"}
CHARACTERS = {code: character for character, code in NAMED.items()}
UNSTORABLE = re.compile("[\\0-\x03\ud800-\udfff]")
ESCAPED = re.compile("[\x01-\x03].", re.DOTALL)
ESCAPES = re.compile(b"[\x01-\x03]")
FIRST_BYTE, FIRST_SURROGATE = 0xDC80, 0xD800
SHIFTED = 0x1000
"""Distance of half a character from its place among the surrogates, in an escape."""


def escaped(text: str) -> str:
    return UNSTORABLE.sub(_escape, text) if UNSTORABLE.search(text) else text


def unescaped(text: str) -> str:
    return ESCAPED.sub(_unescape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if (name := NAMED.get(character)) is not None:
        return ESCAPE + name
    code = ord(character)
    if FIRST_BYTE < code < FIRST_BYTE + 0x80:
        return BYTE + chr(code - FIRST_BYTE)
    return SURROGATE + chr(code - FIRST_SURROGATE + SHIFTED)


def _unescape(found: re.Match[str]) -> str:
    kind, code = found[0][0], found[0][1]
    if kind == ESCAPE:
        return CHARACTERS[code]
    return chr(ord(code) + FIRST_BYTE) if kind == BYTE else chr(ord(code) - SHIFTED + FIRST_SURROGATE)


class _EscapingDumper(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escaped(obj))


class _EscapingUnknownDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escaped(obj))


class _UnescapingLoader(Loader):
    def load(self, data: Buffer) -> str:
        raw = bytes(data)
        text = raw.decode()
        return unescaped(text) if ESCAPES.search(raw) else text


class _UnescapingBinaryLoader(_UnescapingLoader):
    format = Format.BINARY


def escape_text(context: AdaptContext) -> None:
    """Escape the text that a connection sends, and unescape what it receives."""
    adapters = context.adapters
    assert adapters is not None
    for dumper in (_EscapingDumper, _EscapingUnknownDumper):  # the last one is for text whose type the server finds out
        adapters.register_dumper(str, dumper)
    for loader in (_UnescapingLoader, _UnescapingBinaryLoader):
        for name in ("text", "varchar"):
            adapters.register_loader(name, loader)
