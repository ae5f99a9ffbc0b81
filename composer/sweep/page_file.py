"""The report: one file of HTML that needs nothing else, and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from composer.sweep.files import replace_text

PAGE = "report.html"
_SCRIPTS = ("words.js", "plots.js", "page.js")


def write_page(folder: Path, data: Mapping[str, Any]) -> Path | None:
    """Write the report.

    Returns:
        Its path; None where plotly is not installed.
    """
    plotly = _plotly()
    if plotly is None:
        return None
    path = folder / PAGE
    replace_text(path, _html(data, plotly))
    return path


def _plotly() -> str | None:
    """The source of plotly.js, which the package plotly brings along."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return str(get_plotlyjs())


def _html(data: Mapping[str, Any], plotly: str) -> str:
    parts = {
        "css": _part("page.css"),
        "data": json.dumps(data, allow_nan=False, default=str).replace("<", "\\u003c"),
        "plotly": plotly,
        "js": "\n".join(map(_part, _SCRIPTS)),
        "title": "kvpool sweep",  # the script writes the real one
    }
    html = _part("page.html")
    for name, text in parts.items():  # none of the parts says {{...}} of a later one
        before, _, after = html.partition(f"{{{{{name}}}}}")
        html = f"{before}{text}{after}"
    return html


def _part(name: str) -> str:
    return (resources.files("composer.sweep") / "page" / name).read_text("utf-8")
