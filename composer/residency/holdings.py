"""What one tier holds: which slots of its index spaces, and of which pages."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import count

import numpy as np

from composer.boundary import Bools
from composer.free_list import FreeList
from composer.plan import SpacePlan
from composer.residency.entries import PageEntry, PageSlots, Resident
from composer.residency.holders import Holders


class Holdings:
    """The slots of one tier. Not thread-safe: the caches' lock guards it.

    Args:
        tier: Its name.
        spaces: Its slots.
        plans: Their index spaces.

    Attributes:
        page_spaces: Index spaces that keep every page.
        pages: What these hold, by page hash.
        residents: Index space -> page hash -> slot in use.
        on_evict: Told (space, page hashes) of slots that are given up.
        num_evicted: Index space -> how many were.
        changes: How often something came or went.
    """

    def __init__(
        self, tier: str, spaces: Mapping[str, FreeList], plans: Mapping[str, SpacePlan]
    ) -> None:
        self.tier, self._spaces = tier, spaces
        self.page_spaces = tuple(n for n, plan in plans.items() if plan.window_pages is None)
        self.pages: dict[bytes, PageEntry] = {}
        self._places = {name: place for place, name in enumerate(self.page_spaces)}
        self._trailing: dict[str, dict[bytes, Resident]] = {
            name: {} for name in spaces if name not in self._places
        }
        self.residents: dict[str, Mapping[bytes, Resident]] = {
            **{name: PageSlots(self.pages, place) for name, place in self._places.items()},
            **self._trailing,
        }
        self.on_evict: Callable[[str, Sequence[bytes]], None] = _tell_nobody
        self.num_evicted = dict.fromkeys(spaces, 0)
        self.changes = 0
        self._holders = Holders(tier)
        self._clock = count(1)

    def present(self, space: str, page_hashes: Sequence[bytes]) -> Bools:
        """Per page, whether the space holds it."""
        return _contained(self._trailing.get(space, self.pages), page_hashes)

    def presence(self, page_hashes: Sequence[bytes]) -> dict[str, Bools]:
        """The same for every space; those that keep every page hold the same pages."""
        found = dict.fromkeys(self._places, _contained(self.pages, page_hashes))
        for space, known in self._trailing.items():
            found[space] = _contained(known, page_hashes)
        return found

    def slots(self, space: str, page_hashes: Iterable[bytes]) -> list[int]:
        """Slots of pages that are all here."""
        if space in self._trailing:
            known = self._trailing[space]
            return [known[page_hash].slot for page_hash in page_hashes]
        pages, place = self.pages, self._places[space]
        return [pages[page_hash].slots[place] for page_hash in page_hashes]

    def rows(self, space: str, page_hashes: Iterable[bytes]) -> tuple[list[int], list[bool]]:
        """``slots`` and ``degraded`` in one."""
        if space in self._trailing:
            residents = [self._trailing[space][page_hash] for page_hash in page_hashes]
            return [one.slot for one in residents], [one.degraded for one in residents]
        known, place = self.pages, self._places[space]
        pages = [known[page_hash] for page_hash in page_hashes]
        return [page.slots[place] for page in pages], [page.degraded[place] for page in pages]

    def degraded(self, space: str, page_hashes: Iterable[bytes]) -> list[bool]:
        """Of pages that are all here, whether their optional pools hold nothing."""
        if space in self._trailing:
            known = self._trailing[space]
            return [known[page_hash].degraded for page_hash in page_hashes]
        pages, place = self.pages, self._places[space]
        return [pages[page_hash].degraded[place] for page_hash in page_hashes]

    def num_free(self, space: str) -> int:
        """Slots that nobody uses."""
        return self._spaces[space].num_free

    def held(self) -> dict[str, dict[str, int]]:
        """Holder -> index space -> locks on its slots. ``slots``: handed out, nothing's yet."""
        held = self._holders.snapshot()
        out = {
            n: s.num_slots - s.num_free - len(self.residents[n]) for n, s in self._spaces.items()
        }
        taken = {space: number for space, number in out.items() if number > 0}
        return {**held, "slots": taken} if taken else held

    def give_back(self, reservation: Mapping[str, Sequence[int]]) -> None:
        """Free slots that were taken and not adopted."""
        for space, slots in reservation.items():
            self._spaces[space].free(slots)

    def _gone(self, space: str, page_hashes: Sequence[bytes]) -> None:
        """Slots were given up."""
        self.num_evicted[space] += len(page_hashes)
        self.changes += len(page_hashes)
        self.on_evict(space, page_hashes)


def _contained(known: Container[bytes], page_hashes: Sequence[bytes]) -> Bools:
    return np.fromiter(map(known.__contains__, page_hashes), np.bool_, len(page_hashes))


def _tell_nobody(_space: str, _page_hashes: Sequence[bytes]) -> None:
    """Nobody has asked to be told of evictions."""
