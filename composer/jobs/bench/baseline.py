"""An earlier run of the bench, and what has become better or worse since.

Runs are compared by the ratios to their references, so that they may be of two machines. A change
counts where every round of one run is ahead of every round of the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.errors import ConfigError

KEY = "job.baseline"
_FIX = "Name what json=FILE of a job=bench has written"
_FACTS = ("model", "page_size")
Case = tuple[str, str, str]  # row, name, size
Cases = Mapping[Case, Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """One case in both runs.

    Attributes:
        before, now: Its ratios.
        verdict: ``better`` or ``worse`` where that is more than scatter, else empty.
    """

    case: Case
    before: float
    now: float
    verdict: str

    @property
    def change(self) -> float:
        """How much faster it is, relative to its reference: 0.1 is a tenth."""
        return self.now / self.before - 1

    def data(self) -> dict[str, Any]:
        """The same, for machines."""
        row, name, size = self.case
        return {
            "row": row,
            "name": name,
            "size": size,
            "ratio_before": self.before,
            "ratio": self.now,
            "change": self.change,
            "verdict": self.verdict,
        }


def read_baseline(path: Path, facts: Mapping[str, Any]) -> Cases:
    """The cases of an earlier run.

    Args:
        path: Its JSON.
        facts: What this run is of: ``model`` and ``page_size``.

    Raises:
        ConfigError: There is no such file, it is another job's, or of another model.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError.of(KEY, f"cannot read {str(path)!r}: {error}", _FIX) from None
    try:
        cases = {(one["row"], one["name"], one["size"]): _checked(one) for one in data["rows"]}
        other = {name: data[name] for name in _FACTS if data[name] != facts[name]}
    except (KeyError, TypeError, ValueError):
        raise ConfigError.of(KEY, f"{str(path)!r} is no result of this job", _FIX) from None
    if other:
        told = " and ".join(f"{name} {value}, not {facts[name]}" for name, value in other.items())
        raise ConfigError.of(KEY, f"{str(path)!r} is of {told}", _FIX)
    return cases


def compare(before: Cases, rows: Sequence[Mapping[str, Any]]) -> list[Change]:
    """What both runs have measured, in the order of this one.

    Args:
        before: From ``read_baseline``.
        rows: ``Measured.data`` of this run, each with its ``row``.
    """
    changes = []
    for now in rows:
        case = (now["row"], now["name"], now["size"])
        if case in before:
            old = before[case]
            changes.append(Change(case, old["ratio"], now["ratio"], _verdict(old, now)))
    return changes


def _verdict(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    (low_before, high_before), (low, high) = before["ratio_range"], now["ratio_range"]
    if high < low_before:
        return "worse"
    return "better" if low > high_before else ""


def _checked(case: Mapping[str, Any]) -> Mapping[str, Any]:
    low, high = case["ratio_range"]
    if not 0 < float(low) <= float(high) or not float(case["ratio"]) > 0:
        raise ValueError("a ratio is none")
    return case
