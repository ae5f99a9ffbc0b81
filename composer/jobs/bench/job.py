"""Measures the chosen rows, shows them, and compares them with an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from composer.errors import BackendError, Problems
from composer.jobs import JobResult
from composer.jobs.bench.baseline import compare, read_baseline
from composer.jobs.bench.copies import copies
from composer.jobs.bench.figures import figures, objective
from composer.jobs.bench.frame import Cases, Measured
from composer.jobs.bench.params import Params
from composer.jobs.bench.plans import stored_objects
from composer.jobs.bench.python import boundary, configuration, free_list, match, objects
from composer.jobs.bench.report import show, show_changes
from composer.jobs.bench.restore import restore
from composer.jobs.bench.simulate import simulation
from composer.jobs.bench.storage import skip_reason, storage
from composer.jobs.progress import Progress
from composer.schema import CliConfig


@dataclass(frozen=True)
class Row:
    """Some cases, made unless there is a reason not to."""

    cases: Callable[[CliConfig, Params], Cases]
    skip_reason: Callable[[], str | None] = lambda: None


ROWS = {
    "copies": Row(copies),
    "objects": Row(objects),
    "boundary": Row(boundary),
    "free_list": Row(free_list),
    "match": Row(match),
    "restore": Row(restore),
    "storage": Row(storage, skip_reason),
    "stored": Row(stored_objects),
    "simulate": Row(simulation),
    "config": Row(configuration),
}


@dataclass
class _Rows:
    """What became of the rows, by name."""

    measured: dict[str, list[Measured]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run(config: CliConfig, params: Params) -> JobResult:
    """Measure the chosen rows and print them.

    A missed target is reported and is no failure; a store that does not do its work is one.

    Raises:
        ConfigError: A row is unknown, a size is less than one, or the baseline is no bench's.
    """
    _check(params)
    facts = {"model": config.model.name, "page_size": config.page_size}
    baseline = params.baseline and read_baseline(Path(params.baseline), facts)
    rows = _Rows()
    with _threads(params.threads):
        _measure(config, params, rows)
        num_threads = torch.get_num_threads()
    title = (
        f"{config.model.name}: medians of {params.rounds} rounds on {num_threads} threads; "
        "ratio is the speed relative to the reference"
    )
    reasons = {name: f"skipped, {reason}" for name, reason in rows.skipped.items()}
    reasons |= {name: f"FAILED, {reason}" for name, reason in rows.failed.items()}
    show(title, rows.measured, reasons)
    data: dict[str, Any] = {
        **facts,
        "rounds": params.rounds,
        "torch_threads": num_threads,
        "rows": [
            {"row": name, **one.data()} for name, ones in rows.measured.items() for one in ones
        ],
        "skipped": rows.skipped,
        "failed": rows.failed,
    }
    data["figures"] = figures(config, data["rows"])
    if baseline:
        changes = compare(baseline, data["rows"])
        show_changes(str(params.baseline), changes)
        data["changes"] = [one.data() for one in changes]
    return JobResult(data, ok=not rows.failed, objective=objective(data["figures"]))


def _measure(config: CliConfig, params: Params, rows: _Rows) -> None:
    names = list(ROWS) if params.rows is None else list(dict.fromkeys(params.rows))
    with Progress("bench", len(names)) as progress:
        for name in names:
            reason = ROWS[name].skip_reason()
            if reason is not None:
                rows.skipped[name] = reason
            else:
                try:
                    with closing(ROWS[name].cases(config, params)) as cases:
                        rows.measured[name] = [case.measure(params.rounds) for case in cases]
                except BackendError as error:  # the other rows' figures are not lost
                    rows.failed[name] = str(error)
            progress.advance(name)


def _check(params: Params) -> None:
    problems = Problems()
    known = f"Known: {', '.join(sorted(ROWS))}"
    for name in params.rows or ():
        if name not in ROWS:
            problems.add("job.rows", f"there is no row '{name}'", known)
    if params.rows is not None and not params.rows:
        problems.add("job.rows", "names nothing to measure", known)
    params.check(problems)
    problems.raise_if_any()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
