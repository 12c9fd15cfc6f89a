"""A hook for MkDocs that brings pages and files from outside docs/ into the site.

The pages link to each other as they do on GitHub, by paths relative to the repository. In the site, docs/ is the root:
the page docs/broker.md becomes broker.md, and every other file keeps its path, such as benchmarks/README.md. This hook adds
the pages of the repository that belong to the site, rewrites the links that cross the border of docs/, and copies other
linked files. A link to a file that does not exist stays as it is, so that the strict build reports it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
HOME = {"README.md": "index.md", "LICENSE": "LICENSE.txt"}
"""Files whose place in the site differs from their place in the repository."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|[#/])([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages of the repository that belong to the site."""
    for path in PAGES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    """Rewrite the links that leave docs/, or that come from outside it."""
    here = page.file.src_uri
    folder = posixpath.dirname(here if here in PAGES else f"docs/{here}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if (folder.startswith("docs") and target.startswith("docs/")) or not (ROOT / target).is_file():
            return link[1]
        place = HOME.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
        return posixpath.relpath(place, posixpath.dirname(here) or ".")

    return LINK.sub(rewrite, markdown)
