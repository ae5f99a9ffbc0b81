"""Spares callers the wait for a store that answers nothing, and finds out when it is back."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic

FAILURES = 3  # in a row, before calls are spared


class Breaker:
    """Lets calls through until several in a row have failed, then one now and then.

    Attributes:
        pause_s: First pause before the next try; each further failure doubles it.
        most_pause_s: Longest pause.
    """

    def __init__(
        self,
        pause_s: float = 0.5,
        most_pause_s: float = 15.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.pause_s, self.most_pause_s = pause_s, most_pause_s
        self._clock, self._lock = clock, Lock()
        self._num_failures, self._next_try = 0, 0.0

    def allows(self) -> bool:
        """Whether to make a call now. Of several that ask after a pause, one is let through."""
        if self._num_failures < FAILURES:
            return True
        with self._lock:
            if self._num_failures < FAILURES:  # it has just answered another
                return True
            if self._clock() < self._next_try:
                return False
            self._next_try = self._clock() + self._pause()
            return True

    def succeeded(self) -> None:
        """A call was answered."""
        if self._num_failures:
            with self._lock:
                self._num_failures = 0

    def failed(self) -> None:
        """A call was not answered."""
        with self._lock:
            self._num_failures += 1
            self._next_try = self._clock() + self._pause()

    def _pause(self) -> float:
        doublings = min(max(self._num_failures - FAILURES, 0), 32)
        return min(self.pause_s * 2.0**doublings, self.most_pause_s)
