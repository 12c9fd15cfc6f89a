"""All fuzz targets by name. A target takes any bytes, and raises if HoltMQ does what it must not do with any input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fuzz import connections, documents, sessions, values

CORPUS = Path(__file__).with_name("corpus")
"""A folder of inputs for each target: a small set that reaches all code that was reached, and each input that failed once."""

TARGETS: Mapping[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        connections.server_bytes,
        connections.server_frames,
        connections.client,
        sessions.session,
        values.tables,
        values.json_tables,
        values.properties,
        documents.definitions,
        documents.topology,
        documents.config,
        documents.patterns,
        documents.requests,
    )
}


def inputs(name: str) -> list[Path]:
    """Return the stored inputs of a target."""
    return sorted((CORPUS / name).iterdir())
