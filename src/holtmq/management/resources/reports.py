"""The reports of pipeline jobs in the folder given by `--reports`.

A report names the vhost whose messages it describes. Users see the reports of their vhosts; a report without a vhost is for
administrators and monitoring only.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import html
import json
import os
import re
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
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
VHOST = re.compile(r'<meta name="holtmq-vhost" content="([^"<>]*)">')
SUFFIX = ".html"
HEAD_BYTES = 8192
MAX_REPORT_BYTES = 64 * 1024 * 1024
# A report is an HTML page with inline scripts. The sandbox gives it an opaque origin: its scripts cannot reach the API.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
)


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A report with what its head says about it."""

    name: str
    title: str
    vhost: str | None
    """The vhost of the topology, or None if the file does not name one."""
    bytes: int
    written_at: float


@api.collection("/api/reports")
async def reports(call: Call) -> list[dict[str, Any]]:
    """List the reports in the broker's report folder, newest first. A report is visible to users who can see its vhost."""
    found = [report for report in await asyncio.to_thread(_list, call.node.config.reports) if _may_see(call, report)]
    found.sort(key=lambda report: report.written_at, reverse=True)
    return [{**asdict(report), "written_at": moment(report.written_at)} for report in found]


@api.add("POST", "/api/reports/{name}/ticket", answers={200: OBJECT})
async def ticket(call: Call) -> dict[str, Any]:
    """Return a path at which a browser can open the report without a password for one minute."""
    report, _ = await _find(call)
    if not _may_see(call, report):
        raise _missing(report.name)
    ends_at = int(time.time()) + TICKET_S
    return {"path": f"/reports/{ends_at}-{_seal(report, ends_at)}/{quote(report.name, safe='')}"}


async def serve_report(call: Call) -> Response:
    """Return a report to the holder of a valid ticket."""
    ends_at, _, seal = call.path["ticket"].partition("-")
    expired = UnauthenticatedError("the link to the report has expired: open the report from the Pipeline page again")
    if not (ends_at.isascii() and ends_at.isdigit() and len(ends_at) < 12) or int(ends_at) < time.time():
        raise expired
    try:
        report, content = await _find(call)
    except NotFoundError:
        raise expired from None  # whoever has no ticket is not told which reports there are
    if not hmac.compare_digest(_seal(report, int(ends_at)).encode(), seal.encode()):
        raise expired
    headers = {"content-security-policy": REPORT_POLICY, "x-frame-options": "SAMEORIGIN"}
    return Response(content, media_type="text/html", headers=headers)


def _may_see(call: Call, report: ReportFile) -> bool:
    if call.caller.sees_all_vhosts():
        return True
    return report.vhost is not None and call.caller.may_enter(report.vhost)


def _seal(report: ReportFile, ends_at: int) -> str:
    """Sign the name, and the vhost too: another report may have replaced the file."""
    signed = json.dumps([ends_at, report.name, report.vhost])
    return hmac.new(SECRET, signed.encode(), hashlib.sha256).hexdigest()


async def _find(call: Call) -> tuple[ReportFile, bytes]:
    folder, name = call.node.config.reports, call.path["name"]
    if folder is None or not name.endswith(SUFFIX) or "/" in name or "\0" in name:
        raise _missing(name)
    try:
        return await asyncio.to_thread(_read, folder, name, MAX_REPORT_BYTES)
    except OSError as error:
        raise _missing(name) from error


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"no report {name!r}")


def _list(folder: str | None) -> list[ReportFile]:
    found: list[ReportFile] = []
    if folder is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in Path(folder).iterdir():
                if path.name.endswith(SUFFIX):
                    with suppress(OSError):
                        found.append(_read(folder, path.name, HEAD_BYTES)[0])
    return found


def _read(folder: str, name: str, most: int) -> tuple[ReportFile, bytes]:
    """Return a report and the beginning of its file. Raise OSError for anything but a regular file: no links, no devices."""
    descriptor = os.open(Path(folder) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a file", name)
        content = file.read(most)
    head = content[:HEAD_BYTES].decode(errors="replace")
    title, vhost = TITLE.search(head), VHOST.search(head)
    return ReportFile(
        name,
        html.unescape(title.group(1).strip()) if title else name.removesuffix(SUFFIX),
        html.unescape(vhost.group(1)) if vhost else None,
        about.st_size,
        about.st_mtime,
    ), content
