"""``job=report``: summary, page and table of a sweep that has run, or of what there is of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from composer.jobs import JobResult
from composer.schema import CliConfig
from composer.sweep.report import report


@dataclass
class Params:
    """Which sweep.

    Attributes:
        folder: Where its points are.
    """

    folder: str


def run(config: CliConfig, params: Params) -> JobResult:
    """Report on the sweep.

    Raises:
        ConfigError: There is none in that folder.
    """
    sweep = report(Path(params.folder), config.report)
    failed = [point.number for point in sweep.points if point.status == "failed"]
    best = sweep.best()
    return JobResult(
        {
            "points": len(sweep.points),
            "failed": failed,
            "objective": sweep.objective,
            "best": best[0].number if best else None,
        }
    )
