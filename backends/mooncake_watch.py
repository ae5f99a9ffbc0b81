"""What transfers that fail tell: which objects are out of reach, and whether a client is wedged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

# A master forgets a client that is gone after 10 s, and about 2 s more; until then it says that
# the client's objects exist.
UNREACHABLE_S = 13.0
WEDGED_S = 15.0  # longer than that: by then only a client that is wedged moves nothing
MOST_SUSPECTS = 1 << 16
_MIN_FAILURES = 3


class Suspects:
    """Objects that exist as far as the master knows, and could not be moved."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._until: dict[str, float] = {}  # in the order of time

    def add(self, keys: Sequence[str]) -> None:
        """Leave these objects alone for a while."""
        until = self._clock() + UNREACHABLE_S
        with self._lock:
            for key in keys:
                self._until.pop(key, None)
                self._until[key] = until
            while len(self._until) > MOST_SUSPECTS:
                del self._until[next(iter(self._until))]

    def among(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which of the keys are to be left alone."""
        if not self._until:
            return np.zeros(len(keys), np.bool_)
        now = self._clock()
        with self._lock:
            while self._until and next(iter(self._until.values())) <= now:
                del self._until[next(iter(self._until))]
            return np.array([key in self._until for key in keys], np.bool_)


class Wedge:
    """Finds out that a client moves nothing any more, whatever it is asked to move.

    Attributes:
        found: Whether it did, and nothing was moved since.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._since: float | None = None
        self._num_failures = 0
        self.found = False

    def moved(self) -> None:
        """A transfer succeeded, or there is another client."""
        if self._since is not None:
            with self._lock:
                self._since, self._num_failures, self.found = None, 0, False

    def failed(self) -> bool:
        """Not one transfer of a call succeeded. True: take another client; told once."""
        with self._lock:
            if self._since is None:
                self._since = self._clock()
            self._num_failures += 1
            late = self._clock() - self._since >= WEDGED_S
            if self.found or not late or self._num_failures < _MIN_FAILURES:
                return False
            self.found = True
            return True
