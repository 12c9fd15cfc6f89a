"""The layout of an archive: the names of its files and folders, and which of them contain data. Runs on the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow.fs as fs

from holtmq.spark.filesystems import SCHEME, path_below

HIDDEN = "_holtmq"
"""Folder beside the data for files that are not complete. Readers ignore names that start with an underscore."""
BATCH = re.compile(r"batch-([0-9a-f]{12})-(\d{9})-")
"""Name of a file of an archive: the query and the batch that have written it."""


def batch_name(query_id: str, batch_id: int) -> str:
    """Return the first part of the names of a batch's files, which `BATCH` matches."""
    return f"batch-{query_id.replace('-', '')[:12]}-{batch_id:09}"


def join_path(*parts: str) -> str:
    """Return a path of these parts, of which some may be empty."""
    return "/".join(part for part in parts if part)


def uri_below(target: str, path: str, root: str) -> str:
    """Return a path below the target in the form that Spark expects."""
    return target.rstrip("/") + path[len(root) :] if SCHEME.match(target) else path


def data_files(filesystem: fs.FileSystem, root: str, *, may_vanish: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the folder (below the root) and the name of each data file. With `may_vanish`, missing folders are ignored."""
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=may_vanish)):
        below = path_below(info.path, root)
        if info.type == fs.FileType.File and not any(part.startswith(("_", ".")) for part in below.split("/")):
            folder, _, name = below.rpartition("/")
            yield folder, name
