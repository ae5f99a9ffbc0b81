"""Measures a thing of ours against a reference, in turns, so that a busy machine slows both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

from composer.jobs.collection import no_collection

LEAST_S = 0.005  # shorter calls are repeated within one measurement


@dataclass(frozen=True)
class Unit:
    """How the time of one call becomes a figure.

    Attributes:
        scale: Figure of one item (or byte) in one second.
        is_rate: More is better.
    """

    name: str
    scale: float = 1.0
    is_rate: bool = False

    def figure(self, seconds: float, amount: float) -> float:
        return amount / seconds * self.scale if self.is_rate else seconds / amount * self.scale


GB_PER_S = Unit("GB/s", 1e-9, is_rate=True)
US_PER_PAGE = Unit("us/page", 1e6)
US = Unit("us", 1e6)
MS = Unit("ms", 1e3)
OBJECTS = Unit("objects")


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
            parts.append(f"<= {self.figure:,g} {unit.name}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Line(ABC):
    """What one line of the table is about.

    Attributes:
        reference_name: What it is measured against, in a word or two.
    """

    name: str
    size: str
    unit: Unit
    reference_name: str
    target: Target | None = None

    @abstractmethod
    def measure(self, rounds: int) -> Measured:
        """Its figures."""


@dataclass(frozen=True, kw_only=True)
class Case(Line):
    """Two calls that are timed.

    Attributes:
        amount: Items, or bytes, that one call deals with.
        before: Runs before each call of either, outside of the measurement.
        most_rounds: Of calls that take long; with one there is no warm-up either. None: any.
    """

    ours: Callable[[], object]
    reference: Callable[[], object]
    amount: float = 1
    before: Callable[[], object] | None = None
    most_rounds: int | None = None

    def measure(self, rounds: int) -> Measured:
        """Call both sides in turns, the first one changing from round to round."""
        rounds = min(rounds, self.most_rounds or rounds)
        calls = [_Call(self.ours, self.before), _Call(self.reference, self.before)]
        with no_collection():
            if self.most_rounds != 1:
                for call in calls:
                    call.warm_up()
            for number in range(rounds):
                for call in calls if number % 2 else reversed(calls):
                    call.measure()
        ours, reference = (call.seconds for call in calls)
        ratios = [two / one for one, two in zip(ours, reference, strict=True)]

        def figure(seconds: float) -> float:
            return self.unit.figure(seconds, self.amount)

        return Measured(
            self,
            ours=figure(median(ours)),
            reference=figure(median(reference)),
            best=figure(min(ours)),
            best_reference=figure(min(reference)),
            ratio=median(ratios),
            ratio_range=(min(ratios), max(ratios)),
        )


@dataclass(frozen=True, kw_only=True)
class Count(Line):
    """Two numbers that are the same in every run; fewer are better."""

    ours: int
    reference: int

    def measure(self, rounds: int) -> Measured:
        """There is nothing to wait for."""
        del rounds
        ours, reference = float(self.ours), float(self.reference)
        ratio = reference / ours
        return Measured(self, ours, reference, ours, reference, ratio, (ratio, ratio))


Cases = Generator[Line, None, None]  # gives back, when closed, what its cases are built on


@dataclass(frozen=True)
class Measured:
    """Figures over the rounds.

    Attributes:
        ours, reference: Medians.
        best, best_reference: Of the fastest round, which says more on a busy machine.
        ratio: Median of the reference's time by ours, within one round.
        ratio_range: The lowest and the highest of the same: how far rounds scatter.
    """

    line: Line
    ours: float
    reference: float
    best: float
    best_reference: float
    ratio: float
    ratio_range: tuple[float, float]

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        target = self.line.target
        return None if target is None else target.is_met(self.ratio, self.ours)

    def data(self) -> dict[str, Any]:
        """The same, for machines."""
        line, target = self.line, self.line.target
        return {
            "name": line.name,
            "size": line.size,
            "unit": line.unit.name,
            "ours": self.ours,
            "reference": self.reference,
            "best": self.best,
            "best_reference": self.best_reference,
            "reference_name": line.reference_name,
            "ratio": self.ratio,
            "ratio_range": list(self.ratio_range),
            "target": None if target is None else target.text(line.unit),
            "met": self.met,
        }


class _Call:
    """One side of a case."""

    def __init__(self, call: Callable[[], object], before: Callable[[], object] | None) -> None:
        self._call, self._before, self._repeat = call, before, 1
        self.seconds: list[float] = []

    def warm_up(self) -> None:
        """Call it once, to learn how long it takes."""
        self.measure()
        first = self.seconds.pop()
        if self._before is None and first < LEAST_S:
            self._repeat = ceil(LEAST_S / first)

    def measure(self) -> None:
        if self._before is not None:
            self._before()
        start = perf_counter()
        for _ in range(self._repeat):
            self._call()
        self.seconds.append(max(perf_counter() - start, 1e-9) / self._repeat)
