"""Tables of a job, on a terminal and in a file: nothing is cut off in either."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

FILE_WIDTH = 1000  # wider than any table: a file has no right edge


def make_console() -> Console:
    """A console on standard output; plain, and as wide as it takes, where that is no terminal."""
    width = None if sys.stdout.isatty() else FILE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of texts and numbers.

    Args:
        title: Stands above it, at the left.
        columns: Headings; those that begin with ``>`` stand over numbers, set at the right.
        rows: Cells; whole numbers get separators, None is a dash.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in columns:
        is_number = name.startswith(">")
        table.add_column(
            Text(name.removeprefix(">")),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,  # a number in two pieces is none
        )
    for row in rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    return table


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if type(cell) is int else str(cell)


def compact(numbers: Sequence[int]) -> str:
    """Ascending numbers in few characters: ``0-60``, ``3,7,…,47``, ``1,2,9``."""
    pieces, rest = [], list(numbers)
    while rest:
        run = _run(rest)
        pieces.append(_run_text(rest[:run]))
        rest = rest[run:]
    return ",".join(pieces) or "-"


def _run(numbers: Sequence[int]) -> int:
    """How many of the first numbers one piece of text names."""
    if len(numbers) < 3:
        return 1
    step = numbers[1] - numbers[0]
    length = 2
    while length < len(numbers) and numbers[length] - numbers[length - 1] == step:
        length += 1
    return length if length >= (3 if step == 1 else 4) else 1


def _run_text(run: Sequence[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    if run[1] - run[0] == 1:
        return f"{run[0]}-{run[-1]}"
    return f"{run[0]},{run[1]},…,{run[-1]}"
