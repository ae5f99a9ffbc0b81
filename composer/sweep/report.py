"""What a sweep ends with: the page, and a short table of the best points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from composer.jobs.tables import make_console, make_table
from composer.schema import ReportConfig
from composer.sweep.names import format_figure, title
from composer.sweep.page_data import page_data
from composer.sweep.page_file import write_page
from composer.sweep.point import Point
from composer.sweep.summary import SUMMARY, refresh
from composer.sweep.sweep import Sweep
from composer.sweep.view import View, choose

BEST, FAILED = 8, 4  # points in the terminal's table; errors below it, and points of each


def report(folder: Path, asked: ReportConfig) -> Sweep:
    """Write summary and page of the sweep in ``folder``, and print its best points.

    Raises:
        ConfigError: There is no sweep.
    """
    Sweep.read(folder)  # nothing is written where there is none
    sweep = refresh(folder)
    view = choose(sweep, asked)
    page = write_page(folder, page_data(sweep, view)) if sweep.measured else None
    _print(sweep, view, page)
    return sweep


def exit_code(sweep: Sweep) -> int:
    """2 where no point has succeeded, 1 where one is not well, else 0."""
    statuses = {point.status for point in sweep.points}
    return 1 if "unwell" in statuses else 0 if "ok" in statuses else 2


def _print(sweep: Sweep, view: View, page: Path | None) -> None:
    console = make_console()
    failed = [point for point in sweep.points if point.status == "failed"]
    points = "1 point" if len(sweep.points) == 1 else f"{len(sweep.points)} points"
    if sweep.measured:
        names = [
            name for name in dict.fromkeys([view.y, view.x]) if name and name not in sweep.keys
        ]
        columns = [">#", *sweep.keys, *(f">{title(name)}" for name in names), ">took"]
        rows = [_row(sweep, point, names) for point in sweep.best(view.y)[:BEST]]
        name = f"{points}, {len(failed)} failed; the best" if failed else f"{points}; the best"
        console.print(make_table(name, columns, rows))
    else:
        console.print(f"{points}, and all failed")
    for line in _failures(failed):
        console.print(line, soft_wrap=True)
    for note in view.notes:
        console.print(note, soft_wrap=True)
    console.print(f"summary {sweep.folder / SUMMARY}", soft_wrap=True)
    if page is not None:
        console.print(f"report  {page}", soft_wrap=True)
    elif sweep.measured:
        install = "pip install 'kvpool-composer[report]'"
        again = f"kvpool job=report job.folder={sweep.folder}"
        console.print(f"report  needs plotly: {install}, then {again}", soft_wrap=True)


def _failures(failed: Sequence[Point]) -> Iterator[str]:
    """A line for each error, with the numbers of the points that it has ended."""
    by_error: dict[str | None, list[str]] = {}
    for point in failed:
        by_error.setdefault(point.error, []).append(f"#{point.number}")
    for error, numbers in list(by_error.items())[:FAILED]:
        more = f" and {len(numbers) - FAILED} more" if len(numbers) > FAILED else ""
        yield f"failed  {', '.join(numbers[:FAILED])}{more}: {error}"
    if len(by_error) > FAILED:
        yield f"failed  for {len(by_error) - FAILED} more reasons"


def _row(sweep: Sweep, point: Point, names: Sequence[str]) -> list[object]:
    chosen = [point.overrides.get(key) for key in sweep.keys]
    figures = [format_figure(name, point.figures.get(name)) for name in names]
    return [point.number, *chosen, *figures, f"{point.seconds:.1f} s"]
