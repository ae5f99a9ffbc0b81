"""What every backend needs: registered memory, calls that end before close, and counts."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from composer.errors import BackendError, InvariantError
from composer.storage import PageObjects


class RegisteredMemory:
    """The address ranges a backend may touch.

    Some transports copy from any address and others fault, so every backend checks by itself:
    what works on one must work on all.
    """

    def __init__(self) -> None:
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)

    def add(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Add ranges, as (address, bytes).

        Raises:
            BackendError: A range is empty, or overlaps another one.
        """
        ranges = sorted(zip(self._starts.tolist(), self._ends.tolist(), strict=True))
        for address, num_bytes in buffers:
            if address <= 0 or num_bytes <= 0:
                raise BackendError(f"cannot register {num_bytes} bytes at address {address:#x}")
            ranges.append((address, address + num_bytes))
        if not ranges:
            return
        ranges.sort()
        starts, ends = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
        if (overlap := np.flatnonzero(ends[:-1] > starts[1:])).size:
            raise BackendError(f"memory at {starts[overlap[0] + 1]:#x} is registered twice")
        self._starts, self._ends = starts, ends

    def check(self, objects: PageObjects) -> None:
        """Refuse objects with a part outside the registered ranges.

        Raises:
            InvariantError: Names the first such address.
        """
        addresses, part_bytes = objects.addresses, objects.part_bytes
        if addresses.shape != (len(objects.keys), len(part_bytes)):
            raise InvariantError(
                f"{len(objects.keys)} keys of {len(part_bytes)} parts, but addresses have the "
                f"shape {addresses.shape}"
            )
        if not addresses.size:
            return
        # Nearly always the parts of one column lie in one range: the column's ends decide.
        first, last = addresses.min(axis=0), addresses.max(axis=0) + part_bytes
        if not self._inside(first, last).all():
            self._check_each(addresses, addresses + part_bytes)

    def _inside(
        self, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whether [first, last) lies within one registered range."""
        if not self._starts.size:
            return np.zeros(first.shape, np.bool_)
        at = np.searchsorted(self._starts, first, side="right") - 1
        return (at >= 0) & (last <= self._ends[at]) & (first <= last)

    def _check_each(self, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> None:
        inside = self._inside(first, last)
        if not inside.all():
            at = tuple(np.argwhere(~inside)[0])
            raise InvariantError(
                f"{last[at] - first[at]} bytes at address {first[at]:#x} are not registered memory"
            )


class Calls:
    """Lets calls in while a backend is open, and lets close wait for them: ``with calls: ...``."""

    def __init__(self, backend: str, *, survives_fork: bool = True) -> None:
        self._backend = backend
        self._survives_fork = survives_fork
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._num_inside = 0
        self._closed = False

    @property
    def forked(self) -> bool:
        """Whether this is a fork of the process that opened the backend."""
        return os.getpid() != self._pid

    def __enter__(self) -> None:
        """Begin a call.

        Raises:
            BackendError: The backend is closed, or this process is a fork that may not use it.
        """
        # Asked before the lock: in a fork another thread may have held it.
        if not self._survives_fork and self.forked:
            raise BackendError(
                f"the {self._backend} backend was opened in process {self._pid} and cannot be "
                f"used after a fork. Open it in the worker, or start workers with spawn"
            )
        with self._changed:
            if self._closed:
                raise BackendError(f"the {self._backend} backend is closed")
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._num_inside -= 1
            if self._closed:
                self._changed.notify_all()

    def shut(self) -> bool:
        """Let no further call in; False: it was shut already."""
        with self._changed:
            was_closed, self._closed = self._closed, True
            return not was_closed

    def wait(self, timeout_s: float) -> bool:
        """Whether every call had left within ``timeout_s``."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while self._num_inside and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._num_inside


class Counts:
    """Named counts, added to from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Add to the counts of these names; a zero leaves no entry."""
        with self._lock:
            for name, count in counts.items():
                if count:
                    self._counts[name] += int(count)

    def snapshot(self) -> dict[str, int]:
        """All counts now."""
        with self._lock:
            return dict(self._counts)
