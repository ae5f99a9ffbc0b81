"""``summary.csv``: a row a point, failed ones too, true after every job."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from composer.sweep.files import locked, replace_text
from composer.sweep.sweep import Sweep

SUMMARY, _LOCK = "summary.csv", ".summary.lock"
_HEAD, _TAIL = ("number", "status"), ("took_s", "error", "command")


def refresh(folder: Path) -> Sweep:
    """Write the summary of all points that there are by now.

    Jobs may end at once in several processes: whoever holds the lock last has seen all points.
    """
    with locked(folder / _LOCK):
        sweep = Sweep.read(folder)
        replace_text(folder / SUMMARY, _csv(sweep))
    return sweep


def _csv(sweep: Sweep) -> str:
    """Settings, then figures; the one that the sweep is judged by first, those of parts last."""
    settings = dict.fromkeys([*sweep.keys, *sweep.fixed])
    first = {(sweep.objective or "").removeprefix("-"): None}
    names = dict.fromkeys(name for point in sweep.points for name in point.figures)
    figures = [name for name in {**first, **names} if name in names and name not in settings]
    figures.sort(key=lambda name: (name not in first, "." in name))
    columns = [*_HEAD, *settings, *_TAIL, *figures]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for point in sweep.points:
        head, tail = (point.number, point.status), (point.seconds, point.error, point.command)
        chosen = [point.overrides.get(key) for key in settings]
        writer.writerow([*head, *chosen, *tail, *map(point.figures.get, figures)])
    return text.getvalue()
