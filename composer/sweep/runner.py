"""Runs one job of a sweep: a point is written whatever becomes of it, and the others go on."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from time import perf_counter
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from composer.config_loader import ROOT
from composer.errors import ComposerError, ConfigError, did_you_mean
from composer.jobs import JobResult
from composer.sweep.files import write_json
from composer.sweep.point import OUTPUT, RESULT, Figure, Point, figures_of


def run_point(job: Callable[[], JobResult], config: Any, hydra: Any) -> float:
    """Run a job and write down what came of it.

    What it prints goes into its folder: with many points the terminal is for what they have led to.

    Args:
        config: The job's, before it is checked.
        hydra: Hydra's node of it.

    Returns:
        What a sweeper is to make as large as it can: minus infinity for a point that failed.
    """
    folder, start = Path(hydra.runtime.output_dir), perf_counter()
    status, error, figures = "failed", None, dict[str, Figure]()
    objective = config.objective
    try:
        _check_direction(hydra.sweeper.get("direction"))
        with (folder / OUTPUT).open("w", encoding="utf-8") as output, redirect_stdout(output):
            result = job()
        write_json(folder / RESULT, result.data)
        figures = figures_of(result.data)
        objective = objective or result.objective
        _check_objective(objective, figures)
        status = "ok" if result.ok else "unwell"
    except ComposerError as raised:
        error = str(raised)
    except Exception as fault:  # ours, and still no reason to lose the other points
        traceback.print_exc()
        error = f"{type(fault).__name__}: {fault}"
    point = Point(
        number=hydra.job.num,
        job=config.job.name,
        model=config.model.name,
        status=status,
        overrides=dict(_settings(hydra.overrides.task)),
        command=_command(hydra),
        seconds=perf_counter() - start,
        error=error,
        objective=objective,
        figures=figures,
        folder=str(folder),
    )
    point.write()
    return point.score()


def _check_direction(direction: Any) -> None:
    """Refuse to search for the worst point; ``direction``: of a sweeper that has one."""
    if getattr(direction, "name", direction) not in (None, "maximize"):
        reason = f"is {getattr(direction, 'name', direction)}, and an objective is to be large"
        fix = "Use hydra/sweeper=search, and objective=-KEY for a number that is to be small"
        raise ConfigError.of("hydra.sweeper.direction", reason, fix)


def _check_objective(objective: str | None, figures: Mapping[str, Figure]) -> None:
    """Find the objective among the figures, if there is one."""
    name = (objective or "").removeprefix("-")
    if objective is not None and isinstance(figures.get(name), (str, type(None))):
        numbers = [key for key, value in figures.items() if not isinstance(value, str)]
        fix = did_you_mean(name, numbers)
        raise ConfigError.of("objective", f"the result has no number '{name}'", fix)


def _settings(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for one in OverridesParser.create().parse_overrides(list(overrides)):
        value = one.value()
        text = value if isinstance(value, str) else one.get_value_element_as_str()
        yield one.get_key_element().lstrip("+"), text


def _command(hydra: Any) -> str:
    """What runs this point alone."""
    sources = hydra.runtime.config_sources
    folders = [one.path for one in sources if one.provider == "command-line"]
    flags = [f"--config-dir={folder}" for folder in folders]
    if hydra.job.config_name not in (None, ROOT):
        flags.append(f"--config-name={hydra.job.config_name}")
    return shlex.join(["kvpool", *flags, *hydra.overrides.task])
