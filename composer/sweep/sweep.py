"""A whole sweep, read from its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from pathlib import Path

from composer.errors import ConfigError
from composer.sweep.files import write_json
from composer.sweep.point import POINT, Point
from composer.units import parse_bytes

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Asked:
    """What the command asked for, written before the first point runs.

    Attributes:
        command: Runs the sweep again.
        keys: The keys that are swept.
        started: Date and time, local.
    """

    command: str
    keys: Sequence[str]
    started: str

    def write(self, folder: Path) -> None:
        """Begin a sweep in a folder: points of an earlier one are not its points."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.rglob(POINT):
            path.unlink()
        write_json(folder / SWEEP, asdict(self))


@dataclass(frozen=True)
class Sweep:
    """What was asked for, and the points so far, by number."""

    folder: Path
    asked: Asked
    points: Sequence[Point]

    @classmethod
    def read(cls, folder: Path) -> Sweep:
        """The sweep in a folder.

        Raises:
            ConfigError: There is none.
        """
        try:
            asked = Asked(**json.loads((folder / SWEEP).read_text("utf-8")))
        except OSError as error:
            reason = f"{str(folder)!r} holds no sweep: {error.strerror}"
            raise ConfigError.of("job.folder", reason, "Name a folder below sweeps/") from error
        points = map(Point.read, folder.rglob(POINT))
        return cls(folder, asked, sorted(points, key=lambda point: point.number))

    @cached_property
    def keys(self) -> Sequence[str]:
        """Swept keys that any point has a value of."""
        return [key for key in self.asked.keys if any(key in one.overrides for one in self.points)]

    @cached_property
    def fixed(self) -> Mapping[str, str]:
        """Overrides that are the same in all points."""
        first = self.points[0].overrides if self.points else {}
        return {key: value for key, value in first.items() if key not in self.asked.keys}

    @cached_property
    def objective(self) -> str | None:
        """The figure that the sweep is judged by, with ``-`` where it is to be small."""
        return next((one.objective for one in self.points if one.objective), None)

    @cached_property
    def measured(self) -> Sequence[Point]:
        """Points that have a result."""
        return [point for point in self.points if point.status != "failed"]

    def best(self, figure: str | None = None) -> list[Point]:
        """Points with a result, the best one first; of equals the one with more of ``figure``."""

        def rank(point: Point) -> tuple[float, float]:
            value = point.number_of(figure or "")
            return -point.score(), inf if value is None else -value

        return sorted(self.measured, key=rank)

    def values(self, key: str) -> list[str]:
        """The values of a swept key: ascending, or as they came where they are not numbers."""
        found = list(dict.fromkeys(p.overrides[key] for p in self.points if key in p.overrides))
        amounts = {text: amount(text) for text in found}
        if any(number is None for number in amounts.values()):
            return found
        return sorted(found, key=lambda text: amounts[text] or 0)


def amount(text: str) -> float | None:
    """The number that a text is, as it is or as a size; None: it is neither."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_bytes(text)
    except ValueError:
        return None
