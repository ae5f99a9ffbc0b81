"""The slots of one tier, and the chains of pages in those spaces that keep every page.

A page is evicted only when no resident page continues it, so that a tier always loses a prompt's
tail before its head. Among such pages, those that no boundary can use go first, and then the
eviction policy decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import numpy as np

from composer.boundary import Bools
from composer.entries import Checkpoint, PageEntry, Resident
from composer.errors import InvariantError
from composer.eviction import RANKS, EvictionQueue, Protected, Rank, Use
from composer.free_list import FreeList
from composer.holders import Holders
from composer.plan import SpacePlan
from composer.reach import Reach
from composer.schema import EvictionPolicy


class Chains:
    """The slots of one tier, and its chains. Not thread-safe: the caches' lock guards it.

    Args:
        tier: Its name.
        spaces: Its slots.
        plans: Their index spaces.
        eviction: What goes first where there is a choice.
        reach: Which pages are useful, by what all tiers hold; None: every page is.

    Attributes:
        residents: Index space -> page hash -> slot in use.
        pages: Chains, by page hash.
        on_evict: Told (space, page hash) of each slot that is given up.
        keeps: Whether what would go next has to be saved first.
        refused: What ``keeps`` held back when the last ``make_room`` failed; None: nothing.
        stored: Asked whether storage has a page that is given up; None: this tier cannot know.
    """

    def __init__(
        self,
        tier: str,
        spaces: Mapping[str, FreeList],
        plans: Mapping[str, SpacePlan],
        *,
        eviction: EvictionPolicy = EvictionPolicy.lru,
        reach: Reach | None = None,
    ) -> None:
        self.tier, self._spaces = tier, spaces
        self.page_spaces = tuple(n for n, plan in plans.items() if plan.window_pages is None)
        self.residents: dict[str, dict[bytes, Resident]] = {name: {} for name in spaces}
        self.pages: dict[bytes, PageEntry] = {}
        self.on_evict: Callable[[str, bytes], None] = _tell_nobody
        self.keeps: Callable[[PageEntry | Checkpoint], bool] = lambda _entry: False
        self.refused: PageEntry | Checkpoint | None = None
        self.stored: Callable[[bytes], bool | None] = _cannot_know
        self.num_evicted = dict.fromkeys(spaces, 0)
        self._children: dict[bytes, int] = {}
        self._rank, self._reach = RANKS[eviction], reach
        self._leaves = EvictionQueue(
            self.pages, self._page_rank if reach is not None else self._rank
        )
        self._has_segments = eviction is EvictionPolicy.slru
        slots = [spaces[name].num_slots for name in self.page_spaces if self._has_segments]
        self._protected = Protected(self.pages, min(slots, default=0), self._demote)
        self._fresh: list[PageEntry] = []  # adopted, and not offered yet: most get a child first
        self._holders = Holders(tier)
        self._clock = count(1)

    # what is here

    def present(self, space: str, page_hashes: Sequence[bytes]) -> Bools:
        """Per page, whether the space holds it."""
        known = self.residents[space]
        flags = [page_hash in known for page_hash in page_hashes]
        return np.array(flags, dtype=np.bool_)

    def slots(self, space: str, page_hashes: Iterable[bytes]) -> list[int]:
        """Slots of pages that are all here."""
        known = self.residents[space]
        return [known[page_hash].slot for page_hash in page_hashes]

    def degraded(self, space: str, page_hashes: Iterable[bytes]) -> list[bool]:
        known = self.residents[space]
        return [known[page_hash].degraded for page_hash in page_hashes]

    def num_free(self, space: str) -> int:
        """Slots that nobody uses."""
        return self._spaces[space].num_free

    def num_children(self, page_hash: bytes) -> int:
        """Pages here that continue a page."""
        return self._children.get(page_hash, 0)

    def held(self) -> dict[str, dict[str, int]]:
        """Holder -> index space -> locks on its slots. ``slots``: handed out, nothing's yet."""
        held = self._holders.snapshot()
        out = {
            n: s.num_slots - s.num_free - len(self.residents[n]) for n, s in self._spaces.items()
        }
        taken = {space: number for space, number in out.items() if number > 0}
        return {**held, "slots": taken} if taken else held

    # chains

    def adopt_page(self, page: PageEntry, slots: Mapping[str, Resident]) -> PageEntry:
        """Take over the slots of one page, or free them where the page is here already."""
        known = self.pages.get(page.page_hash)
        if known is not None:
            for space, resident in slots.items():
                self._spaces[space].free([resident.slot])
            return known
        now = next(self._clock)
        entry = PageEntry(page.page_hash, page.parent, page.scope, arrived=now, last_use=now)
        for space in self.page_spaces:
            self.residents[space][page.page_hash] = slots[space]
        self.pages[page.page_hash] = entry
        self._children[page.parent] = self._children.get(page.parent, 0) + 1
        if self._reach is not None:
            self._reach.add_page(page.page_hash, page.parent)
        self._fresh.append(entry)
        return entry

    def lock(self, pages: Sequence[PageEntry], holder: str) -> None:
        """Keep pages from being evicted until ``unlock``."""
        for space in self.page_spaces:
            self._holders.add(holder, space, len(pages))
        for page in pages:
            page.locks += 1

    def unlock(self, pages: Sequence[PageEntry], holder: str) -> None:
        for space in self.page_spaces:
            self._holders.add(holder, space, -len(pages))
        children = self._children
        for page in pages:
            page.locks -= 1
            if page.locks < 0:
                raise InvariantError(
                    f"{self.tier}: {holder} releases a page that nobody locks; "
                    f"held: {self._holders.snapshot() or 'nothing'}"
                )
            if not page.locks and page.page_hash not in children:  # _offer, for each page of many
                self._leaves.offer(page.page_hash, page)

    def touch(self, page_hashes: Sequence[bytes], *, hit: bool = False) -> None:
        """A prefix was used: the last page of it that is here, and so all before it, are recent.

        Args:
            page_hashes: The prefix.
            hit: It was restored, not only looked at or made.
        """
        for page_hash in reversed(page_hashes):
            page = self.pages.get(page_hash)
            if page is not None:
                self._use(page, hit)
                break
        if hit:
            self._protected.hit(reversed(page_hashes))  # so that a tail makes room before its head

    def _use(self, one: Use, hit: bool) -> None:
        one.last_use = next(self._clock)
        one.hits += hit

    def _demote(self, _page_hash: bytes, page: PageEntry) -> None:
        page.last_use = next(self._clock)
        self._offer(page)

    def _offer(self, page: PageEntry) -> None:
        if self._is_leaf(page):
            self._leaves.offer(page.page_hash, page)

    def _is_leaf(self, page: PageEntry) -> bool:
        return not page.locks and page.page_hash not in self._children

    def _page_rank(self, page: PageEntry) -> Rank:
        return (self._reach is None or self._reach.useful(page.page_hash), self._rank(page))

    def _offer_fresh(self) -> None:
        for page in self._fresh:
            self._offer(page)
        self._fresh.clear()

    def _evict_pages(self, _space: str, number: int) -> int:
        """Evict up to so many pages; returns how many."""
        self._offer_fresh()
        slots: dict[str, list[int]] = {space: [] for space in self.page_spaces}
        evicted, leaves = 0, self._leaves
        parent: PageEntry | None = None
        while evicted < number:
            page = leaves.offer_and_pop(parent.page_hash, parent) if parent else leaves.pop()
            parent = None
            if page is None:
                break
            if not self._is_leaf(page):
                continue  # offered again when it becomes one
            if self._refuses(page):
                self._offer(page)
                break
            parent = self._drop_page(page, slots)
            evicted += 1
        if parent is not None:
            self._offer(parent)
        for space, ids in slots.items():
            self._spaces[space].free(ids)
        return evicted

    def _refuses(self, entry: PageEntry | Checkpoint) -> bool:
        """Whether something has to be saved before it goes."""
        if self.keeps(entry):
            self.refused = entry
            return True
        return False

    def _drop_page(self, page: PageEntry, slots: Mapping[str, list[int]]) -> PageEntry | None:
        """Forget a leaf.

        Args:
            page: The leaf.
            slots: Where its slots are appended, for the caller to free.

        Returns:
            Its parent, where that has become a leaf, for the caller to offer.
        """
        stored = None if self._reach is None else self.stored(page.page_hash)
        del self.pages[page.page_hash]
        self._protected.drop(page.page_hash)
        for space, ids in slots.items():
            ids.append(self._drop(space, page.page_hash))
        children = self._children[page.parent] - 1
        if children:
            self._children[page.parent] = children
        else:
            del self._children[page.parent]
        parent = self.pages.get(page.parent)
        if parent is not None:
            parent.inherit(page)
        if self._reach is not None:
            self._reach.drop_page(page.page_hash, stored=stored)
        return parent if parent is not None and self._is_leaf(parent) else None

    def _found_useless(self, page_hash: bytes) -> None:
        page = self.pages.get(page_hash)
        if page is not None:
            self._offer(page)

    def _drop(self, space: str, page_hash: bytes) -> int:
        """Forget what a slot holds; returns the slot."""
        resident = self.residents[space].pop(page_hash)
        self.num_evicted[space] += 1
        self.on_evict(space, page_hash)
        return resident.slot


def _tell_nobody(_space: str, _page_hash: bytes) -> None:
    """Nobody has asked to be told of evictions."""


def _cannot_know(_page_hash: bytes) -> None:
    """Only the tier above storage can know."""
