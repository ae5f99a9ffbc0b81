"""What Hydra calls in the course of a sweep; conf/config.yaml names it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from composer.schema import ReportConfig
from composer.sweep.names import format_figure
from composer.sweep.point import Point
from composer.sweep.summary import refresh
from composer.sweep.sweep import Asked, Sweep


class SweepEnd(BaseException):
    """All points of the sweep in ``folder`` have run; no Exception, which Hydra would swallow."""

    def __init__(self, folder: Path, asked: ReportConfig) -> None:
        super().__init__(folder, asked)
        self.folder, self.asked = folder, asked


class SweepCallback(Callback):
    """Keeps a sweep's summary. What fails here Hydra warns of, and the sweep's end repeats."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        command = shlex.join(["kvpool", *sys.argv[1:]])
        started = datetime.now().astimezone().isoformat(" ", "minutes")
        Asked(command, swept_keys(config.hydra), started).write(folder)
        print(f"kvpool: a row a point in {folder}/summary.csv", file=sys.stderr)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        del job_return  # the job itself has written down more
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        sweep = refresh(Path(config.hydra.sweep.dir))
        for point in sweep.points:
            if point.number == config.hydra.job.num:
                print(_line(sweep, point), file=sys.stderr)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Hand over to the command: here, errors are lost, and there is no exit code."""
        asked = ReportConfig(**{str(key): value for key, value in config.report.items()})
        raise SweepEnd(Path(config.hydra.sweep.dir), asked)


def _line(sweep: Sweep, point: Point) -> str:
    """What came of one point, in a line."""
    chosen = " ".join(f"{key}={point.overrides.get(key)}" for key in sweep.asked.keys)
    if point.error is not None:
        return f"kvpool: #{point.number} {chosen}: FAILED: {point.error}"
    words = [f"{point.seconds:.1f} s"]
    if point.objective is not None:
        name = point.objective.removeprefix("-")
        words.insert(0, f"{name} {format_figure(name, point.figures.get(name))}")
    if point.status != "ok":
        words.append("NOT WELL")
    return f"kvpool: #{point.number} {chosen}: {', '.join(words)}"


def swept_keys(hydra: DictConfig) -> list[str]:
    """The keys that have several values, on the command line or in the sweeper's params."""
    params: Mapping[str, Any] = hydra.sweeper.get("params") or {}
    texts = [*(f"{key}={value}" for key, value in params.items()), *hydra.overrides.task]
    parsed = OverridesParser.create().parse_overrides(texts)
    return list(
        dict.fromkeys(
            one.get_key_element().lstrip("+") for one in parsed if one.is_sweep_override()
        )
    )
