"""Measures the chosen rows, shows them, and compares them with an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from composer.errors import BackendError, Problems
from composer.jobs import JobResult
from composer.jobs.bench.copies import copies
from composer.jobs.bench.frame import Cases, Measured, measure
from composer.jobs.bench.python import boundary, configuration, free_list, match, objects
from composer.jobs.bench.storage import skip_reason, storage
from composer.jobs.progress import Progress
from composer.jobs.tables import make_console, make_table
from composer.schema import CliConfig, StackConfig
from composer.units import parse_bytes

_COLUMNS = (
    "row", "what", "size", ">ours", ">best", ">reference", "unit", "reference is", ">ratio",
    "target", "",
)  # fmt: skip


@dataclass
class Params:
    """What is measured, and how thoroughly.

    Attributes:
        rows: Names of the rows; None: all.
        rounds: Measurements of each side; the median counts.
        pages: Pages copied between the tiers at once, at most.
        python_pages: Pages of the rows that move no bytes.
        prompt_tokens: Length of the prompt that is matched.
        storage_batch: What one call to the store moves.
        threads: Threads of torch's copies: with more than one, a busy machine shows how long the
            others are waited for. None: as many as torch takes by itself.
    """

    rows: list[str] | None = None
    rounds: int = 9
    pages: int = 32
    python_pages: int = 4096
    prompt_tokens: int = 131_072
    storage_batch: str = "128MiB"
    threads: int | None = 1


@dataclass(frozen=True)
class Row:
    """Some cases, made for a size from the params unless there is a reason not to."""

    cases: Callable[[StackConfig, int], Cases]
    size: Callable[[Params], int]
    skip_reason: Callable[[], str | None] = lambda: None


ROWS = {
    "copies": Row(copies, lambda params: params.pages),
    "objects": Row(objects, lambda params: params.python_pages),
    "boundary": Row(boundary, lambda params: params.python_pages),
    "free_list": Row(free_list, lambda params: params.python_pages),
    "match": Row(match, lambda params: params.prompt_tokens),
    "storage": Row(storage, lambda params: parse_bytes(params.storage_batch), skip_reason),
    "config": Row(configuration, lambda _: 1),
}


def run(config: CliConfig, params: Params) -> JobResult:
    """Measure the chosen rows and print them.

    A missed target is reported and is no failure; a store that does not do its work is one.

    Raises:
        ConfigError: A row is unknown, or a size is less than one.
    """
    _check(params)
    names = list(ROWS) if params.rows is None else list(dict.fromkeys(params.rows))
    measured: dict[str, list[Measured]] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    with _threads(params.threads), Progress("bench", len(names)) as progress:
        for name in names:
            reason = ROWS[name].skip_reason()
            if reason is not None:
                skipped[name] = reason
            else:
                try:
                    measured[name] = _measured(ROWS[name], config, params)
                except BackendError as error:  # the other rows' figures are not lost
                    failed[name] = str(error)
            progress.advance(name)
        num_threads = torch.get_num_threads()
    title = (
        f"{config.model.name}: medians of {params.rounds} rounds on {num_threads} threads; "
        "ratio is the speed relative to the reference"
    )
    reasons = {name: f"skipped, {reason}" for name, reason in skipped.items()}
    reasons |= {name: f"FAILED, {reason}" for name, reason in failed.items()}
    _show(title, measured, reasons)
    return JobResult(
        {
            "model": config.model.name,
            "page_size": config.page_size,
            "rounds": params.rounds,
            "torch_threads": num_threads,
            "rows": [{"row": name, **one.data()} for name in measured for one in measured[name]],
            "skipped": skipped,
            "failed": failed,
        },
        ok=not failed,
    )


def _measured(row: Row, config: StackConfig, params: Params) -> list[Measured]:
    with closing(row.cases(config, row.size(params))) as cases:
        return [measure(case, params.rounds) for case in cases]


def _check(params: Params) -> None:
    problems = Problems()
    known = f"Known: {', '.join(sorted(ROWS))}"
    for name in params.rows or ():
        if name not in ROWS:
            problems.add("job.rows", f"there is no row '{name}'", known)
    for key in ("rounds", "pages", "python_pages", "prompt_tokens", "threads"):
        if (value := getattr(params, key)) is not None and value < 1:
            problems.add(f"job.{key}", f"{value} is less than one")
    try:
        parse_bytes(params.storage_batch)
    except ValueError as error:
        problems.add("job.storage_batch", str(error))
    if params.rows is not None and not params.rows:
        problems.add("job.rows", "names nothing to measure", known)
    problems.raise_if_any()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _show(title: str, measured: dict[str, list[Measured]], reasons: dict[str, str]) -> None:
    console = make_console()
    console.print(title, soft_wrap=True)
    rows = [_line(name, one) for name in measured for one in measured[name]]
    console.print(make_table("", _COLUMNS, rows))
    for name, reason in reasons.items():
        console.print(f"{name}: {reason}", soft_wrap=True)
    targets = [one.met for ones in measured.values() for one in ones if one.met is not None]
    console.print(f"targets met: {sum(targets)} of {len(targets)}")


def _line(name: str, one: Measured) -> tuple[Any, ...]:
    case = one.case
    verdict = {True: "met", False: "MISSED", None: ""}[one.met]
    return (
        name, case.name, case.size,
        f"{one.ours:.3g}", f"{one.best:.3g}", f"{one.reference:.3g}",
        case.unit.name, case.reference_name, f"{one.ratio:.2f}",
        case.target.text(case.unit) if case.target else None, verdict,
    )  # fmt: skip
