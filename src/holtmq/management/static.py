"""The static files of the pages, read once at startup."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.responses import Response

from holtmq.errors import NotFoundError

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
ALIASES = {"/": "/index.html", "/api/": "/api.html", "/api/index.html": "/api.html", "/favicon.ico": "/logo.svg"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file with its media type and entity tag."""

    content: bytes
    media_type: str
    tag: str


class StaticFiles:
    """All files of the pages by their path."""

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] = {}
        self._read(files("holtmq.management").joinpath("pages"), "")

    def _read(self, folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                self._read(entry, f"{path}/{entry.name}")
            elif (suffix := f".{entry.name.rsplit('.', 1)[-1]}") in TYPES:
                content = entry.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
                self._files[f"{path}/{entry.name}"] = StaticFile(content, TYPES[suffix], tag)

    def respond(self, path: str, known_tag: str | None) -> Response:
        """Return the file at a path, or 304 if the browser already has it."""
        found = self._files.get(ALIASES.get(path, path))
        if found is None:
            raise NotFoundError(f"no resource at {path[:200]!r}: the web pages are at /, the HTTP API is at /api/")
        if known_tag == found.tag:
            return Response(status_code=304, headers={"etag": found.tag})
        return Response(found.content, headers={"etag": found.tag, "content-type": found.media_type})
