"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 10.0


class Progress:
    """Counts steps on standard error; standard output stays free for results."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._done = title, total, 0
        self._last_line = monotonic()
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(title, total=total, note="")

    def advance(self, note: str = "") -> None:
        """One step more; ``note`` stands behind the bar."""
        self._done += 1
        self._bar.update(self._task, advance=1, note=note)
        now = monotonic()
        if self._bar.disable and (now - self._last_line > LINE_EVERY_S):
            self._last_line = now
            print(f"{self._title}: {self._done} of {self._total} {note}", file=sys.stderr)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
