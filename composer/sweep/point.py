"""One point of a sweep: what was asked for, and what came of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from composer.sweep.files import write_json

POINT, RESULT, OUTPUT = "point.json", "result.json", "output.txt"  # in each point's folder
INPUTS = ("config", "origins")  # what a result repeats of its configuration

Figure = float | int | str | bool


@dataclass(frozen=True)
class Point:
    """What a job of a sweep leaves.

    Attributes:
        number: Hydra's number of the job.
        job, model: What it ran, and on which preset.
        status: ``ok``; ``unwell`` where a job found something that is not; ``failed``.
        overrides: Key and value of each, as texts.
        command: Runs this point alone.
        error: Why it failed.
        objective: The figure that the sweep is judged by, with ``-`` before one that is to be
            small; None: the job has none.
        figures: All scalars of the result, by dotted key.
        folder: Where the result lies.
    """

    number: int
    job: str
    model: str
    status: str
    overrides: Mapping[str, str]
    command: str
    seconds: float
    error: str | None = None
    objective: str | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    folder: str = ""

    def write(self) -> None:
        """Write it into its folder."""
        write_json(Path(self.folder) / POINT, {**asdict(self), "folder": None})

    @classmethod
    def read(cls, path: Path) -> Point:
        """The point in a file."""
        return cls(**{**json.loads(path.read_text("utf-8")), "folder": str(path.parent)})

    def result(self) -> Mapping[str, Any]:
        """The whole result; empty where there is none."""
        path = Path(self.folder) / RESULT
        data: Mapping[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return data

    def number_of(self, key: str) -> float | None:
        """A figure, where it is a finite number."""
        value = self.figures.get(key)
        if isinstance(value, (str, type(None))) or not math.isfinite(value):
            return None
        return value

    def score(self) -> float:
        """How good it is by its objective: more is better; one that failed is worst of all."""
        if self.objective is None or self.status == "failed":
            return -math.inf
        value = self.number_of(self.objective.removeprefix("-"))
        if value is None:
            return -math.inf
        return -value if self.objective.startswith("-") else value


def figures_of(data: Mapping[str, Any]) -> dict[str, Figure]:
    """The scalars of a result at any depth, by dotted key, or those that it names as its figures.

    Lists are left out, and what the result repeats of its configuration.
    """
    named = data.get("figures")
    if named is None:
        named = {name: value for name, value in data.items() if name not in INPUTS}
    return dict(_scalars(named, ""))


def _scalars(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Figure]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}.")
        elif isinstance(value, (bool, int, float, str)):
            yield f"{prefix}{name}", value
