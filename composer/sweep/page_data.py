"""What the report's page is told: plain data, and what to show first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from composer.sweep.names import kind_and_unit, title
from composer.sweep.point import Point
from composer.sweep.sweep import Sweep, amount
from composer.sweep.view import MEMORY, View, has_spread, numbers

MOST_SERIES = 48  # points whose occupancy is shown: the best ones
MOST_COLUMNS = 6  # figures in the table before one asks for all


def page_data(sweep: Sweep, view: View) -> dict[str, Any]:
    """All that the page shows, without a number that JSON has no word for."""
    figures = [name for name in numbers(sweep) if name not in sweep.keys]
    varying = [name for name in figures if has_spread(sweep, name)]
    objective, best = sweep.objective, sweep.best(view.y)
    return {
        "title": heading(sweep),
        "started": sweep.asked.started,
        "command": sweep.asked.command,
        "keys": [_key(name, sweep.values(name)) for name in sweep.keys],
        "fixed": dict(sweep.fixed),
        "objective": objective
        and {"name": objective.removeprefix("-"), "sign": -1 if objective[0] == "-" else 1},
        "figures": {name: _about(name) for name in figures},
        "varying": varying,
        "columns": _columns(
            figures, varying, [objective and objective.removeprefix("-"), view.y, view.x]
        ),
        "points": [_point(point, figures) for point in sweep.points],
        "best": [point.number for point in best],
        "occupancy": dict(_occupancies(best[:MOST_SERIES])),
        "view": asdict(view),
    }


def heading(sweep: Sweep) -> str:
    """The jobs and the models of a sweep."""
    jobs = dict.fromkeys(point.job for point in sweep.points)
    models = dict.fromkeys(point.model for point in sweep.points)
    return " · ".join([", ".join(jobs), *([", ".join(models)] if len(models) < 4 else [])])


def _key(name: str, values: Sequence[str]) -> dict[str, Any]:
    numeric = all(amount(text) is not None for text in values)
    return {"name": name, "values": list(values), "numeric": numeric}


def _about(name: str) -> dict[str, str]:
    kind, unit = kind_and_unit(name)
    return {"title": title(name), "kind": kind, "unit": unit}


def _columns(
    figures: Sequence[str], varying: Sequence[str], first: Sequence[str | None]
) -> list[str]:
    """Figures of the table: what the plots show, then what varies in the result as a whole."""
    left_out = (*MEMORY, "seconds")  # which the plots show, and which is about what the job took
    whole = [name for name in varying if "." not in name and name not in left_out]
    shown = [name for name in first if name is not None]
    return [name for name in dict.fromkeys([*shown, *whole]) if name in figures][:MOST_COLUMNS]


def _point(point: Point, figures: Sequence[str]) -> dict[str, Any]:
    found = {name: point.number_of(name) for name in figures}
    return {
        "number": point.number,
        "status": point.status,
        "error": point.error,
        "seconds": point.seconds,
        "command": point.command,
        "settings": dict(point.overrides),
        "figures": {name: value for name, value in found.items() if value is not None},
    }


def _occupancies(points: Sequence[Point]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Per point and index space of a tier: requests served, and slots or bytes in use then."""
    for point in points:
        series: dict[tuple[str, str], dict[str, Any]] = {}
        for look in point.result().get("occupancy") or ():
            place = look["tier"], look["space"]
            line = series.setdefault(place, _line(look))
            line["request"].append(look["request"])
            line["used"].append(look["used"])
        if series:
            yield point.number, list(series.values())


def _line(look: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: look[key] for key in ("tier", "space", "slots")}, "request": [], "used": []}
