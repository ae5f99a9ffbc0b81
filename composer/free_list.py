"""Ids of one index space in one tier: which are free."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

from composer.errors import InvariantError

_FEW = 16  # below this many ids a Python loop beats numpy


class FreeList:
    """Hands out ids ``0 .. num_slots - 1``.

    Not thread-safe, the stack's lock guards it; but for ``hold``, ``unhold`` and ``is_held``.
    """

    def __init__(self, name: str, num_slots: int) -> None:
        self.name, self.num_slots = name, num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._taken = bytearray(num_slots)
        self._taken_array = np.frombuffer(self._taken, dtype=np.uint8)
        self._lock = Lock()
        self._held: dict[int, int] = {}  # id -> calls that may still touch its memory
        self._freed_held: set[int] = set()
        self._unheld: deque[Sequence[int]] = deque()

    @property
    def num_free(self) -> int:
        """Ids that can be allocated now."""
        if self._unheld:
            self._collect()
        return len(self._free)

    def allocate(self, num_ids: int) -> list[int] | None:
        """Take ``num_ids`` ids, or none at all: None when too few are free.

        Raises:
            InvariantError: ``num_ids`` is negative.
        """
        if num_ids < 0:
            raise InvariantError(f"{self.name}: {num_ids} ids asked for")
        if self._unheld:
            self._collect()
        free, taken = self._free, self._taken
        first = len(free) - num_ids
        if first < 0:
            return None
        ids = free[first:]
        del free[first:]
        ids.reverse()  # as they were freed: neighbours stay neighbours
        if num_ids <= _FEW:
            for one in ids:
                taken[one] = 1
        else:
            self._taken_array[ids] = 1
        return ids

    def free(self, ids: Sequence[int]) -> None:
        """Give ids back.

        Raises:
            InvariantError: An id is out of bounds, is not taken, or comes twice; nothing is freed.
        """
        if len(ids) <= _FEW:
            self._untake_few(ids)
        else:
            self._untake_many(ids)
        self._free.extend(self._not_held(ids) if self._held else ids[::-1])

    def hold(self, ids: Sequence[int]) -> None:
        """Keep taken ids, freed meanwhile or not, from being handed out again until ``unhold``."""
        with self._lock:
            for one in ids:
                self._held[one] = self._held.get(one, 0) + 1

    def unhold(self, ids: Sequence[int]) -> None:
        """End one ``hold`` of these ids."""
        self._unheld.append(ids)

    def is_held(self, one: int) -> bool:
        return one in self._held

    def check(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Refuse ids that are not taken.

        Raises:
            InvariantError: An id is out of bounds or free.
        """
        if len(ids) <= _FEW:
            for one in ids:
                if not (0 <= one < self.num_slots and self._taken[one]):
                    raise self._not_taken(one)
            return
        array = np.asarray(ids, dtype=np.int64)
        wrong = array[(array < 0) | (array >= self.num_slots)]
        if not len(wrong):
            wrong = array[self._taken_array[array] == 0]
        if len(wrong):
            raise self._not_taken(int(wrong[0]))

    def _not_taken(self, one: int) -> InvariantError:
        is_inside = 0 <= one < self.num_slots
        what = "not taken (freed twice?)" if is_inside else f"outside 0..{self.num_slots - 1}"
        return InvariantError(f"{self.name}: id {one} is {what}")

    def _not_held(self, ids: Sequence[int]) -> list[int]:
        """Ids in the order of ``free``, less those that are held, which are kept back."""
        with self._lock:
            kept = [one for one in ids if one in self._held]
            self._freed_held.update(kept)
            return [one for one in reversed(ids) if one not in self._held]

    def _collect(self) -> None:
        """Free what is no longer held."""
        with self._lock:
            while self._unheld:
                for one in self._unheld.popleft():
                    self._held[one] -= 1
                    if not self._held[one]:
                        del self._held[one]
                        if one in self._freed_held:
                            self._freed_held.remove(one)
                            self._free.append(one)

    def _untake_few(self, ids: Sequence[int]) -> None:
        taken, num_slots = self._taken, self.num_slots
        for position, one in enumerate(ids):
            if not (0 <= one < num_slots and taken[one]):
                for earlier in ids[:position]:
                    taken[earlier] = 1
                raise self._not_taken(one)
            taken[one] = 0

    def _untake_many(self, ids: Sequence[int]) -> None:
        array = np.asarray(ids, dtype=np.int64)
        self.check(array)
        self._taken_array[array] = 0
        left = self.num_slots - len(self._free) - len(self._freed_held) - len(ids)
        if int(np.count_nonzero(self._taken_array)) != left:
            self._taken_array[array] = 1
            raise InvariantError(f"{self.name}: {len(ids)} ids to free, some of them twice")
