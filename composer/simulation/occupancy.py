"""How full the tiers were in the course of a trace, in a bounded number of samples."""

from __future__ import annotations

from typing import Any

from composer.simulation.store import IndexStore
from composer.stack import Stack

NUM_SAMPLES = 200  # of each index space, at most


class Occupancy:
    """Looks at a stack now and then.

    Attributes:
        series: One mapping per look, tier and index space: ``request`` (how many were served),
            ``tier``, ``space``, ``used`` and ``slots``. For storage, of which no space has slots,
            ``space`` is ``bytes``, both are bytes, and ``slots`` is None without a limit.
    """

    def __init__(self, stack: Stack, store: IndexStore | None, num_requests: int) -> None:
        self._stack, self._store = stack, store
        self._every = max(-(-num_requests // NUM_SAMPLES), 1)
        self._total = num_requests
        self.series: list[dict[str, Any]] = []

    def look(self, num_served: int) -> None:
        """So many requests were served."""
        if num_served % self._every and num_served != self._total:
            return
        for tier, group in (("device", self._stack.device), ("host", self._stack.group)):
            for name, ids in group.spaces.items():
                if ids.num_slots:
                    used = ids.num_slots - ids.num_free
                    self._add(num_served, tier, name, used, ids.num_slots)
        if self._store is not None:
            capacity = self._store.capacity_bytes
            self._add(num_served, "storage", "bytes", self._store.num_bytes, capacity)

    def _add(self, request: int, tier: str, space: str, used: int, slots: int | None) -> None:
        one = {"request": request, "tier": tier, "space": space, "used": used, "slots": slots}
        self.series.append(one)
