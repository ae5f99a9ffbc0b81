"""Measures a thing of ours against a reference, in turns, so that a busy machine slows both."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

LEAST_S = 0.002  # shorter calls are repeated within one measurement


@dataclass(frozen=True)
class Unit:
    """How the time of one call becomes a figure.

    Attributes:
        scale: Figure of one item (or byte) in one second.
        is_rate: More is better.
    """

    name: str
    scale: float
    is_rate: bool = False

    def figure(self, seconds: float, amount: float) -> float:
        return amount / seconds * self.scale if self.is_rate else seconds / amount * self.scale


GB_PER_S = Unit("GB/s", 1e-9, is_rate=True)
US_PER_PAGE = Unit("us/page", 1e6)
US = Unit("us", 1e6)
MS = Unit("ms", 1e3)


@dataclass(frozen=True)
class Target:
    """What a case should reach: a speed relative to the reference, or a figure, or both."""

    ratio: float | None = None  # at least
    figure: float | None = None  # at most

    def is_met(self, ratio: float, figure: float) -> bool:
        return (self.ratio is None or ratio >= self.ratio) and (
            self.figure is None or figure <= self.figure
        )

    def text(self, unit: Unit) -> str:
        parts = []
        if self.ratio is not None:
            parts.append(f"ratio >= {self.ratio:g}")
        if self.figure is not None:
            parts.append(f"<= {self.figure:g} {unit.name}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        reference_name: What ``reference`` is, in a word or two.
        amount: Items, or bytes, that one call deals with.
        before: Runs before each call of either, outside of the measurement.
    """

    name: str
    size: str
    unit: Unit
    ours: Callable[[], object]
    reference: Callable[[], object]
    reference_name: str
    target: Target | None = None
    amount: float = 1
    before: Callable[[], object] | None = None


Cases = Generator[Case, None, None]  # gives back, when closed, what its cases are built on


@dataclass(frozen=True)
class Measured:
    """Figures over the rounds.

    Attributes:
        ours, reference: Medians.
        best, best_reference: Of the fastest round, which says more on a busy machine.
        ratio: Median of the reference's time by ours, within one round.
    """

    case: Case
    ours: float
    reference: float
    best: float
    best_reference: float
    ratio: float

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        target = self.case.target
        return None if target is None else target.is_met(self.ratio, self.ours)

    def data(self) -> dict[str, Any]:
        """The same, for machines."""
        target = self.case.target
        return {
            "name": self.case.name,
            "size": self.case.size,
            "unit": self.case.unit.name,
            "ours": self.ours,
            "reference": self.reference,
            "best": self.best,
            "best_reference": self.best_reference,
            "reference_name": self.case.reference_name,
            "ratio": self.ratio,
            "target_ratio": None if target is None else target.ratio,
            "target_figure": None if target is None else target.figure,
            "met": self.met,
        }


def measure(case: Case, rounds: int) -> Measured:
    """Call both sides in turns, the first one changing from round to round."""
    calls = [_Call(case.ours, case.before), _Call(case.reference, case.before)]
    with _no_collection():
        for number in range(rounds):
            for call in calls if number % 2 else reversed(calls):
                call.measure()
    ours, reference = (call.seconds for call in calls)

    def figure(seconds: float) -> float:
        return case.unit.figure(seconds, case.amount)

    return Measured(
        case,
        ours=figure(median(ours)),
        reference=figure(median(reference)),
        best=figure(min(ours)),
        best_reference=figure(min(reference)),
        ratio=median(two / one for one, two in zip(ours, reference, strict=True)),
    )


class _Call:
    """One side of a case, called once beforehand to warm up and to learn how long it takes."""

    def __init__(self, call: Callable[[], object], before: Callable[[], object] | None) -> None:
        self._call, self._before, self._repeat = call, before, 1
        self.seconds: list[float] = []
        self.measure()
        first = max(self.seconds.pop(), 1e-9)
        if before is None and first < LEAST_S:
            self._repeat = ceil(LEAST_S / first)

    def measure(self) -> None:
        if self._before is not None:
            self._before()
        start = perf_counter()
        for _ in range(self._repeat):
            self._call()
        self.seconds.append(max(perf_counter() - start, 1e-9) / self._repeat)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running within a measurement."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
