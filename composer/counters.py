"""Counts of what happened, by name; added to from any thread, read as a plain snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock


class Counters:
    """A thread-safe multiset of names."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def add_all(self, counts: Mapping[str, int], prefix: str = "") -> None:
        """Add several counts at once, their names behind ``prefix``."""
        with self._lock:
            for name, count in counts.items():
                self._counts[prefix + name] += count

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counts.items()))
