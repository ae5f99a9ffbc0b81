"""What a full tier gives up first: a rank per entry, and one queue that keeps entries by rank."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from composer.schema import EvictionPolicy

Rank = tuple[Any, ...]  # what goes first ranks lowest


@dataclass(slots=True, kw_only=True)
class Use:
    """When something came and was used, by the tier's own clock.

    Attributes:
        hits: Prefixes that were restored through it.
        queued: The rank it waits with in an ``EvictionQueue``; None: it is in none.
    """

    arrived: int = 0
    last_use: int = 0
    hits: int = 0
    queued: Rank | None = None

    def inherit(self, child: Use) -> None:
        """Count the uses of what continued this and is gone: they were uses of this, too."""
        self.last_use = max(self.last_use, child.last_use)
        self.hits += child.hits


def _lru(use: Use) -> Rank:
    return (use.last_use,)


def _lfu(use: Use) -> Rank:
    return (use.hits, use.last_use)


def _slru(use: Use) -> Rank:
    return (use.hits > 0, use.last_use)  # what was never hit goes before all that was


def _fifo(use: Use) -> Rank:
    return (use.arrived,)


RANKS: Mapping[EvictionPolicy, Callable[[Use], Rank]] = {
    EvictionPolicy.lru: _lru,
    EvictionPolicy.lfu: _lfu,
    EvictionPolicy.slru: _slru,
    EvictionPolicy.fifo: _fifo,
}

Entry = TypeVar("Entry", bound=Use)


class EvictionQueue(Generic[Entry]):
    """Entries by rank, lowest first.

    Uses only raise a rank, so that a use costs nothing here: an entry waits with the rank it had,
    and is ranked again when its turn comes. Whoever lowers a rank offers the entry once more.
    """

    def __init__(self, entries: Mapping[bytes, Entry], rank: Callable[[Entry], Rank]) -> None:
        self._entries, self._rank = entries, rank
        self._heap: list[tuple[Rank, bytes]] = []

    def offer(self, name: bytes, entry: Entry) -> None:
        """Let an entry wait for its turn; nothing where it waits with as low a rank already."""
        rank = self._rank(entry)
        if entry.queued is None or rank < entry.queued:
            self._push(name, entry, rank)

    def pop(self) -> Entry | None:
        """The entry of the lowest rank, which waits no longer; None where none does."""
        while self._heap:
            queued, name = heapq.heappop(self._heap)
            entry = self._entries.get(name)
            if entry is None or entry.queued != queued:
                continue  # gone, or waiting with a lower rank
            rank = self._rank(entry)
            if rank == queued:
                entry.queued = None
                return entry
            entry.queued = rank
            heapq.heappush(self._heap, (rank, name))
        return None

    def offer_and_pop(self, name: bytes, entry: Entry) -> Entry | None:
        """``offer`` and ``pop`` in one step, for an entry that is likely to be next."""
        rank = self._rank(entry)
        if entry.queued is None and (not self._heap or (rank, name) < self._heap[0]):
            return entry
        self.offer(name, entry)
        return self.pop()

    def _push(self, name: bytes, entry: Entry, rank: Rank) -> None:
        entry.queued = rank
        heapq.heappush(self._heap, (rank, name))
        if len(self._heap) > 64 + 2 * len(self._entries):  # mostly of entries that are gone
            waiting = ((one.queued, name) for name, one in self._entries.items())
            self._heap = [(queued, name) for queued, name in waiting if queued is not None]
            heapq.heapify(self._heap)
