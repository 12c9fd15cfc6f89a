"""A report as one HTML page that includes its styles, scripts and data. The only module that needs jinja2."""

from __future__ import annotations

import json
from importlib.resources import files

from holtmq.spark.packages import require_package
from holtmq.spark.reports.outcome import Report

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def render(report: Report) -> str:
    """Return the report as HTML. Runs on the driver. Raise MissingPackageError if jinja2 is not installed."""
    jinja2 = require_package("jinja2", "a report as HTML", "spark")
    folder = files("holtmq.spark.reports")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(count=count, size=size, share=share)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    vendor = folder / "vendor" / "uplot"
    page: str = template.render(
        report=report,
        series=json.dumps(report.to_dict()["series"]).replace("<", "\\u003c"),
        plot_script=(vendor / "uPlot.iife.min.js").read_text(encoding="utf-8"),
        plot_style=(vendor / "uPlot.min.css").read_text(encoding="utf-8"),
    )
    return page


def count(number: int) -> str:
    """Format a number with thousands separators."""
    return f"{number:,}"


def size(number: float) -> str:
    """Format a number of bytes with a unit: 1.4 GiB."""
    for unit in UNITS:
        if number < 1024 or unit == UNITS[-1]:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def share(part: int, whole: int) -> str:
    """Format a share as a percentage. Values between 0 and 0.1 % are shown as < 0.1 %."""
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"
