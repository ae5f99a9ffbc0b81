"""What the report shows first: chosen by what varies, and by how much it matters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance

from composer.errors import did_you_mean
from composer.schema import ReportConfig
from composer.sweep.names import kind_and_unit
from composer.sweep.point import Point
from composer.sweep.sweep import Sweep

MEMORY = ("memory_bytes", "host_bytes", "device_bytes")
MOST_COLORS, MOST_CELLS = 8, 24  # values of a key, to be told apart by color, or along an axis
LEAST_SPREAD = 1.05  # largest by smallest value of a figure that is said to vary
REDUNDANT = 0.95  # share of the variance that makes a key the same as the axis


@dataclass
class View:
    """Names of swept keys or figures; None: there is nothing to show there.

    Attributes:
        x, y, color: Of the scatter plot.
        rows, columns: Of the heat map, whose cells have the colors of ``y``.
        notes: What was asked for and cannot be shown.
    """

    x: str | None = None
    y: str | None = None
    color: str | None = None
    rows: str | None = None
    columns: str | None = None
    notes: list[str] = field(default_factory=list)


def choose(sweep: Sweep, asked: ReportConfig) -> View:
    """The view as asked for, and where nothing was asked for, or what there is not, the default."""
    view, figures = View(), numbers(sweep)
    varying = [name for name in figures if has_spread(sweep, name)]
    view.y = _known("y", asked.y, figures, view) or _most_telling(sweep, varying)
    if view.y is None:
        return view
    keys = [key for key in sweep.keys if len(sweep.values(key)) > 1]
    keys.sort(key=lambda key: -_explained(sweep.measured, key, view.y or ""))
    memory = [name for name in MEMORY if name in varying and name != view.y]
    longest = max(keys, key=lambda key: len(sweep.values(key)), default=None)
    view.x = _known("x", asked.x, [*keys, *figures], view) or next(iter(memory), longest)
    others = [key for key in keys if key != view.x]
    few = [key for key in others if len(sweep.values(key)) <= MOST_COLORS]
    new = [key for key in few if view.x in keys or not _same(sweep, key, view.x)]
    view.color = next(iter(new), None)
    axes = [key for key in keys if len(sweep.values(key)) <= MOST_CELLS]
    pair = sorted(axes[:2], key=lambda key: len(sweep.values(key)))
    if len(pair) == 2:
        view.rows = _known("rows", asked.rows, axes, view) or pair[0]
        columns = _known("columns", asked.columns, axes, view)
        view.columns = columns or next(key for key in reversed(pair) if key != view.rows)
    return view


def _most_telling(sweep: Sweep, varying: Sequence[str]) -> str | None:
    """The objective, or a speed where that is the same in all points."""
    objective = (sweep.objective or "").removeprefix("-")
    speeds = [name for name in varying if "." in name and kind_and_unit(name)[1] == "GB/s"]
    if objective and (objective in varying or not speeds):
        return objective
    return next(iter((*speeds, *varying)), None)


def numbers(sweep: Sweep) -> list[str]:
    """Figures that are numbers in any point: of the whole result first, then of its parts."""
    names = dict.fromkeys(
        name
        for point in sweep.measured
        for name in point.figures
        if point.number_of(name) is not None
    )
    return sorted(names, key=lambda name: name.count("."))


def _known(field_name: str, name: str | None, known: Sequence[str], view: View) -> str | None:
    """The name if it is known; else there is a note."""
    if name is None or name in known:
        return name
    view.notes.append(f"report.{field_name}: there is no '{name}'. {did_you_mean(name, known)}")
    return None


def has_spread(sweep: Sweep, name: str) -> bool:
    """Whether a figure varies by more than what rounding and padding make of it."""
    found = [abs(v) for point in sweep.measured if (v := point.number_of(name)) is not None]
    return len(found) > 1 and max(found) > LEAST_SPREAD * min(found)


def _same(sweep: Sweep, key: str, name: str | None) -> bool:
    """Whether a figure follows a key, as memory follows its setting."""
    return name is not None and _explained(sweep.measured, key, name) > REDUNDANT


def _explained(points: Sequence[Point], key: str, name: str) -> float:
    """How much of a figure's variance is between the values of a key: 0 to 1."""
    groups: dict[str | None, list[float]] = defaultdict(list)
    for point in points:
        value = point.number_of(name)
        if value is not None:
            groups[point.overrides.get(key)].append(value)
    everything = [value for group in groups.values() for value in group]
    if len(everything) < 2 or len(set(everything)) == 1:
        return 0.0
    mean = fmean(everything)
    between = sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values())
    return between / (len(everything) * pvariance(everything))
