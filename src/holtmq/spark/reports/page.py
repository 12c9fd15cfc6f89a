"""The report as one HTML page, with its styles, its script and its data inside."""

from __future__ import annotations

import json
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from holtmq.spark.reports.outcome import Report

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def render(report: Report) -> str:
    folder = files("holtmq.spark.reports")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(count=count, size=size, share=share)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    vendor = folder / "vendor" / "uplot"
    return template.render(
        report=report,
        series=json.dumps(report.to_json()["series"]).replace("<", "\\u003c"),
        plot_script=(vendor / "uPlot.iife.min.js").read_text(encoding="utf-8"),
        plot_style=(vendor / "uPlot.min.css").read_text(encoding="utf-8"),
    )


def count(number: int) -> str:
    return f"{number:,}"


def size(number: float) -> str:
    """Bytes as people read them: 1.4 GiB."""
    for unit in UNITS:
        if number < 1024 or unit == UNITS[-1]:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def share(part: int, whole: int) -> str:
    """As a percentage; small but not nothing shows as such."""
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"
