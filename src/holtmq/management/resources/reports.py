"""The reports of pipeline jobs in the folder given by `--reports`."""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from holtmq.errors import NotFoundError
from holtmq.management.access import UnauthenticatedError
from holtmq.management.operations import OBJECT, Call, api
from holtmq.management.views import moment

TICKET_S = 60
SECRET = secrets.token_bytes(32)
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL | re.IGNORECASE)
TITLE_WITHIN = 4096
# A report is an HTML page with inline scripts. The sandbox gives it an opaque origin: its scripts cannot reach the API.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
)


@api.collection("/api/reports")
def reports(call: Call) -> list[dict[str, Any]]:
    """List the reports in the broker's report folder, newest first."""
    folder = _folder(call)
    if folder is None or not folder.is_dir():
        return []
    files = sorted(_files(folder), key=lambda file: file.stat().st_mtime, reverse=True)
    return [
        {"name": file.name, "title": _title(file), "bytes": file.stat().st_size, "written_at": moment(file.stat().st_mtime)}
        for file in files
    ]


@api.add("POST", "/api/reports/{name}/ticket", answers={200: OBJECT})
def ticket(call: Call) -> dict[str, Any]:
    """Return a path at which a browser can open the report without a password for one minute."""
    name = _find(call).name
    ends_at = int(time.time()) + TICKET_S
    return {"path": f"/reports/{ends_at}-{_seal(name, ends_at)}/{quote(name, safe='')}"}


def serve_report(call: Call) -> Response:
    """Return a report to the holder of a valid ticket."""
    ends_at, _, seal = call.path["ticket"].partition("-")
    name = call.path["name"]
    is_good = (
        ends_at.isascii() and ends_at.isdigit() and len(ends_at) < 12 and hmac.compare_digest(_seal(name, int(ends_at)), seal)
    )
    if not is_good or int(ends_at) < time.time():
        raise UnauthenticatedError("the link to the report has expired: open the report from the Pipeline page again")
    headers = {"content-security-policy": REPORT_POLICY, "x-frame-options": "SAMEORIGIN"}
    return Response(_find(call).read_bytes(), media_type="text/html", headers=headers)


def _seal(name: str, ends_at: int) -> str:
    return hmac.new(SECRET, f"{ends_at} {name}".encode(), hashlib.sha256).hexdigest()


def _folder(call: Call) -> Path | None:
    return Path(call.node.config.reports) if call.node.config.reports is not None else None


def _find(call: Call) -> Path:
    folder, name = _folder(call), call.path["name"]
    known = {file.name: file for file in _files(folder)} if folder is not None and folder.is_dir() else {}
    if name not in known:
        raise NotFoundError(f"no report {name!r}")
    return known[name]


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.html") if file.is_file()]


def _title(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as opened:
        found = TITLE.search(opened.read(TITLE_WITHIN))
    return html.unescape(found.group(1).strip()) if found else file.stem
