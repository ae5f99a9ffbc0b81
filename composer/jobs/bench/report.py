"""The bench's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from composer.jobs.bench.baseline import Change
from composer.jobs.bench.frame import Measured
from composer.jobs.tables import make_console, make_table

_COLUMNS = (
    "row", "what", "size", ">ours", ">best", ">reference", "unit", "reference is", ">ratio",
    "target", "",
)  # fmt: skip
_CHANGES = ("row", "what", "size", ">ratio before", ">now", ">change", "")


def show(
    title: str, measured: Mapping[str, Sequence[Measured]], reasons: Mapping[str, str]
) -> None:
    """Print all figures, and why some are missing."""
    console = make_console()
    console.print(title, soft_wrap=True)
    rows = [_cells(name, one) for name in measured for one in measured[name]]
    console.print(make_table("", _COLUMNS, rows))
    for name, reason in reasons.items():
        console.print(f"{name}: {reason}", soft_wrap=True)
    targets = [one.met for ones in measured.values() for one in ones if one.met is not None]
    console.print(f"targets met: {sum(targets)} of {len(targets)}")


def show_changes(baseline: str, changes: Sequence[Change]) -> None:
    """Print what both runs have measured."""
    console = make_console()
    rows = [
        (*one.case, f"{one.before:.2f}", f"{one.now:.2f}", f"{one.change:+.0%}", one.verdict)
        for one in changes
    ]
    console.print(make_table(f"compared with {baseline}, ratio by ratio", _CHANGES, rows))
    worse = sum(one.verdict == "worse" for one in changes)
    console.print(f"worse beyond the scatter of the rounds: {worse} of {len(changes)}")


def _cells(row: str, one: Measured) -> tuple[object, ...]:
    line = one.line
    verdict = {True: "met", False: "MISSED", None: ""}[one.met]
    return (
        row, line.name, line.size,
        _figure(one.ours), _figure(one.best), _figure(one.reference),
        line.unit.name, line.reference_name, f"{one.ratio:.2f}",
        line.target.text(line.unit) if line.target else None, verdict,
    )  # fmt: skip


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
