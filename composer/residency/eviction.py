"""What a full tier gives up first: a rank per entry, and one queue that keeps entries by rank."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from composer.schema import EvictionPolicy

Rank = Any  # what goes first ranks lowest
PROTECTED_SHARE = 0.8  # of a tier, for what was hit, under slru


@dataclass(slots=True, kw_only=True, eq=False)
class Use:
    """When something came and was used, by the tier's own clock.

    Attributes:
        hits: Prefixes that were restored through it.
        is_protected: It is in the protected segment of slru.
        queued: The rank it waits with in an ``EvictionQueue``; None: it is in none.
    """

    arrived: int = 0
    last_use: int = 0
    hits: int = 0
    is_protected: bool = False
    queued: Rank | None = None


RANKS: Mapping[EvictionPolicy, Callable[[Use], Rank]] = {
    EvictionPolicy.lru: attrgetter("last_use"),
    EvictionPolicy.lfu: attrgetter("hits", "last_use"),
    EvictionPolicy.slru: attrgetter("is_protected", "last_use"),
    EvictionPolicy.fifo: attrgetter("arrived"),
}

Entry = TypeVar("Entry", bound=Use)


class Protected(Generic[Entry]):
    """What was hit, in the order of its last hit: at most a share of a tier.

    What was hit longest ago makes room, and is from then on like something that has just come.

    Args:
        entries: All there are.
        num_slots: Entries that the tier has room for; 0: nothing is ever protected.
        demoted: Told of what makes room.
    """

    def __init__(
        self,
        entries: Mapping[bytes, Entry],
        num_slots: int,
        demoted: Callable[[bytes, Entry], None],
    ) -> None:
        self._entries, self._demoted = entries, demoted
        self._most = int(PROTECTED_SHARE * num_slots)
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def hit(self, names: Iterable[bytes]) -> None:
        """Those of the entries that there are were hit, in this order."""
        if not self._most:
            return
        for name in names:
            if name in self._entries:
                self._entries[name].is_protected = True
                self._order[name] = None
                self._order.move_to_end(name)
                if len(self._order) > self._most:
                    self._demote(self._order.popitem(last=False)[0])

    def drop(self, name: bytes) -> None:
        """An entry is gone."""
        self._order.pop(name, None)

    def _demote(self, name: bytes) -> None:
        entry = self._entries[name]
        entry.is_protected = False
        self._demoted(name, entry)


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
        heap = self._heap
        if entry.queued is None and (not heap or (self._rank(entry), name) < heap[0]):
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
