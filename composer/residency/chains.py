"""The slots of one tier, and the chains of pages in those spaces that keep every page.

A page is evicted only when no resident page continues it, so that a tier always loses a prompt's
tail before its head. Among such pages, those that no boundary can use go first, and then the
eviction policy decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from composer.errors import InvariantError
from composer.free_list import FreeList
from composer.plan import SpacePlan
from composer.residency.entries import Checkpoint, PageEntry
from composer.residency.eviction import RANKS, EvictionQueue, Protected, Rank, Use
from composer.residency.holdings import Holdings
from composer.residency.reach import Reach
from composer.schema import EvictionPolicy

Link = tuple[bytes, bytes]  # a page's hash, and that of the page before it


class Chains(Holdings):
    """The slots of one tier, and its chains; arguments as ``Holdings``, and two more.

    Args:
        eviction: What goes first where there is a choice.
        reach: Which pages are useful, by what all tiers hold; None: every page is.

    Attributes:
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
        super().__init__(tier, spaces, plans)
        self.keeps: Callable[[PageEntry | Checkpoint], bool] = lambda _entry: False
        self.refused: PageEntry | Checkpoint | None = None
        self.stored: Callable[[bytes], bool | None] = _cannot_know
        self._orphans: dict[bytes, set[PageEntry]] = {}  # by the page before them, not here
        self._rank, self._reach = RANKS[eviction], reach
        self._leaves = EvictionQueue(
            self.pages, self._page_rank if reach is not None else self._rank
        )
        self._has_segments = eviction is EvictionPolicy.slru
        slots = [spaces[name].num_slots for name in self.page_spaces if self._has_segments]
        self._protected = Protected(self.pages, min(slots, default=0), self._demote)
        self._fresh: list[PageEntry] = []  # adopted, and not offered yet: most get a child first

    def num_children(self, page_hash: bytes) -> int:
        """Pages here that continue a page."""
        page = self.pages.get(page_hash)
        return page.children if page is not None else len(self._orphans.get(page_hash, ()))

    def adopt_pages(
        self,
        scope: str,
        pages: Sequence[Link],
        slots: Mapping[str, Sequence[int]],
        degraded: Mapping[str, Sequence[bool]] | None = None,
    ) -> list[PageEntry]:
        """Take over the slots of some pages, or free them where a page is here already.

        Args:
            scope: Whose chain they are of.
            pages: Each page's hash and its parent's, in prefix order.
            slots: Index space -> one slot per page, for every space that keeps every page.
            degraded: Per slot, whether its optional pools hold nothing; None: no slot's do.

        Returns:
            The pages as they are here.
        """
        spaces = self.page_spaces
        ids = zip(*(slots[space] for space in spaces), strict=True)
        whole = repeat((False,) * len(spaces))
        flags = whole if degraded is None else zip(*(degraded[s] for s in spaces), strict=True)
        known, now, found = self.pages, next(self._clock), list[PageEntry]()
        above: PageEntry | None = None
        for (page_hash, parent), own, one_degraded in zip(pages, ids, flags, strict=False):
            page = known.get(page_hash)
            if page is None:
                if above is None or above.page_hash != parent:
                    above = known.get(parent)
                page = PageEntry(page_hash, parent, scope, own, one_degraded, above)
                page.arrived = page.last_use = now
                known[page_hash] = page
                self._link(page, above)
            else:
                self.give_back({space: [slot] for space, slot in zip(spaces, own, strict=True)})
            found.append(page)
            above = page
        return found

    def _link(self, page: PageEntry, above: PageEntry | None) -> None:
        """Put a page behind the one that it continues; None: that one is not here."""
        page_hash, fresh, orphans = page.page_hash, self._fresh, self._orphans
        if above is None:
            orphans.setdefault(page.parent, set()).add(page)
        else:
            above.children += 1
            if fresh and fresh[-1] is above:
                fresh.pop()  # no leaf any more
        fresh.append(page)
        if page_hash in orphans:
            for child in orphans.pop(page_hash):
                child.above = page
                page.children += 1
        if self._reach is not None:
            self._reach.add_page(page_hash, page.parent)
        self.changes += 1

    def lock(self, pages: Sequence[PageEntry], holder: str) -> None:
        """Keep pages from being evicted until ``unlock``."""
        for space in self.page_spaces:
            self._holders.add(holder, space, len(pages))
        for page in pages:
            page.locks += 1

    def unlock(self, pages: Sequence[PageEntry], holder: str) -> None:
        for space in self.page_spaces:
            self._holders.add(holder, space, -len(pages))
        leaves = self._leaves
        for page in pages:
            page.locks -= 1
            if page.locks < 0:
                raise InvariantError(
                    f"{self.tier}: {holder} releases a page that nobody locks; "
                    f"held: {self._holders.snapshot() or 'nothing'}"
                )
            if not page.locks and not page.children:
                leaves.offer(page.page_hash, page)

    def touch(self, page_hashes: Sequence[bytes], *, hit: bool = False) -> None:
        """A prefix was used: the last page of it that is here, and so all before it, are recent.

        Args:
            page_hashes: The prefix.
            hit: It was restored, not only looked at or made.
        """
        known = self.pages
        for page_hash in reversed(page_hashes):
            page = known.get(page_hash)
            if page is not None:
                self._use(page, hit)
                break
        if hit and self._has_segments:
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
        return not page.locks and not page.children

    def _page_rank(self, page: PageEntry) -> Rank:
        return (self._reach is None or self._reach.useful(page.page_hash), self._rank(page))

    def _offer_fresh(self) -> None:
        for page in self._fresh:
            if page.is_here:
                self._offer(page)
        self._fresh.clear()

    def _evict_pages(self, _space: str, number: int) -> int:
        """Evict up to so many pages; returns how many."""
        self._offer_fresh()
        leaves, keeps, drop = self._leaves, self.keeps, self._drop_page
        evicted: list[PageEntry] = []
        page = leaves.pop()
        while page is not None:
            if page.locks or page.children:  # offered again when it becomes a leaf
                page = leaves.pop()
                continue
            if keeps(page):
                self.refused = page
                self._offer(page)
                break
            parent = drop(page)
            evicted.append(page)
            if len(evicted) == number:
                if parent is not None:
                    leaves.offer(parent.page_hash, parent)
                break
            page = leaves.offer_and_pop(parent.page_hash, parent) if parent else leaves.pop()
        self._free_pages(evicted)
        return len(evicted)

    def _drop_page(self, page: PageEntry) -> PageEntry | None:
        """Forget a leaf; the caller frees its slots.

        Returns:
            Its parent, where that has become a leaf, for the caller to offer.
        """
        page_hash, above, reach = page.page_hash, page.above, self._reach
        stored = None if reach is None else self.stored(page_hash)
        del self.pages[page_hash]
        page.is_here = False
        if self._has_segments:
            self._protected.drop(page_hash)
        if above is None:
            orphans = self._orphans[page.parent]
            orphans.remove(page)
            if not orphans:
                del self._orphans[page.parent]
        else:
            page.above = None
            above.children -= 1
            above.hits += page.hits  # uses of what continued it were uses of it, too
            if page.last_use > above.last_use:  # noqa: PLR1730 (max is a call more per page)
                above.last_use = page.last_use
        if reach is not None:
            reach.drop_page(page_hash, stored=stored)
        return above if above is not None and not above.children and not above.locks else None

    def _free_pages(self, pages: Sequence[PageEntry]) -> None:
        """Free the slots of pages that were forgotten."""
        hashes = [page.page_hash for page in pages]
        for place, space in enumerate(self.page_spaces if pages else ()):
            self._spaces[space].free([page.slots[place] for page in pages])
            self._gone(space, hashes)

    def _found_useless(self, page_hash: bytes) -> None:
        page = self.pages.get(page_hash)
        if page is not None:
            self._offer(page)


def _cannot_know(_page_hash: bytes) -> None:
    """Only the tier above storage can know."""
