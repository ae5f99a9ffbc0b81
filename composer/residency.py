"""Which pages, windows and states one tier holds, and what it gives up when it is full.

Pages of spaces that keep every page form chains: a page is evicted only when no resident page
continues it, the least recently used first, so that a tier always loses a prompt's tail before its
head. What trails (windows, states) is kept by checkpoints, each a boundary that can be dropped
alone, the least recently used first. Nothing here is thread-safe: the caches' lock guards it.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from composer.boundary import Bools
from composer.errors import InvariantError
from composer.free_list import FreeList
from composer.group import Reservation, reserve
from composer.plan import SpacePlan


@dataclass(slots=True)
class Resident:
    """One slot in use. ``holders``: checkpoints and operations that keep a trailing slot."""

    slot: int
    degraded: bool = False  # its optional pools hold nothing
    holders: int = 0


@dataclass(slots=True)
class PageEntry:
    """One page of a chain, in all spaces that keep every page. ``locks``: who uses it now."""

    page_hash: bytes
    parent: bytes
    scope: str
    last_use: int = 0
    locks: int = 0


@dataclass(slots=True)
class Checkpoint:
    """A boundary: the hashes that each trailing space holds for it."""

    page_hash: bytes
    scope: str
    holds: dict[str, tuple[bytes, ...]] = field(default_factory=dict)


class Residency:
    """The contents of one tier.

    Attributes:
        residents: Index space -> page hash -> slot in use.
        pages: Chains, by page hash.
        checkpoints: By the hash of the last page before the boundary, least recently used first.
        on_evict: Told (space, page hash) of each slot that is given up.
        keeps: Whether what would go next has to be saved first.
        refused: What ``keeps`` held back when the last ``make_room`` failed; None: nothing.
    """

    def __init__(
        self, tier: str, spaces: Mapping[str, FreeList], plans: Mapping[str, SpacePlan]
    ) -> None:
        self.tier, self._spaces = tier, spaces
        self.page_spaces = tuple(n for n, plan in plans.items() if plan.window_pages is None)
        self.trailing = {
            name: plan.window_pages for name, plan in plans.items() if plan.window_pages is not None
        }
        self.residents: dict[str, dict[bytes, Resident]] = {name: {} for name in spaces}
        self.pages: dict[bytes, PageEntry] = {}
        self.checkpoints: OrderedDict[bytes, Checkpoint] = OrderedDict()
        self.on_evict: Callable[[str, bytes], None] = _tell_nobody
        self.keeps: Callable[[PageEntry | Checkpoint], bool] = lambda _entry: False
        self.refused: PageEntry | Checkpoint | None = None
        self.num_evicted = dict.fromkeys(spaces, 0)
        self._children: dict[bytes, int] = {}
        self._leaves: list[tuple[int, bytes]] = []
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

    # room

    def make_room(self, counts: Mapping[str, int]) -> bool:
        """Evict until so many slots are free in each space; False when that cannot be.

        What trails comes first: where it has no room, no page is lost in vain.
        """
        self.refused = None
        if any(needed > self._spaces[space].num_slots for space, needed in counts.items()):
            return False
        for space, needed in sorted(counts.items(), key=lambda item: item[0] not in self.trailing):
            free = self._spaces[space]
            evict = self._evict_checkpoint if space in self.trailing else self._evict_page
            while free.num_free < needed:
                if not evict(space):
                    return False
        return True

    def take(self, counts: Mapping[str, int]) -> Reservation | None:
        """Slots of several spaces, after evicting for them; all or none."""
        return reserve(self._spaces, counts) if self.make_room(counts) else None

    def give_back(self, reservation: Mapping[str, Sequence[int]]) -> None:
        """Free slots that were taken and not adopted."""
        for space, slots in reservation.items():
            self._spaces[space].free(slots)

    # chains

    def adopt_page(self, page: PageEntry, slots: Mapping[str, Resident]) -> PageEntry:
        """Take over the slots of one page, or free them where the page is here already."""
        known = self.pages.get(page.page_hash)
        if known is not None:
            for space, resident in slots.items():
                self._spaces[space].free([resident.slot])
            return known
        entry = PageEntry(page.page_hash, page.parent, page.scope, next(self._clock))
        for space in self.page_spaces:
            self.residents[space][page.page_hash] = slots[space]
        self.pages[page.page_hash] = entry
        self._children[page.parent] = self._children.get(page.parent, 0) + 1
        self._offer(entry)
        return entry

    def lock(self, pages: Iterable[PageEntry]) -> None:
        """Keep pages from being evicted until ``unlock``."""
        for page in pages:
            page.locks += 1

    def unlock(self, pages: Iterable[PageEntry]) -> None:
        for page in pages:
            page.locks -= 1
            if page.locks < 0:
                raise InvariantError(f"{self.tier}: a page has {page.locks} locks")
            self._offer(page)

    def touch(self, page_hashes: Sequence[bytes]) -> None:
        """A prefix was used: the last page of it that is here, and so all before it, are recent."""
        here = (
            self.pages[page_hash] for page_hash in reversed(page_hashes) if page_hash in self.pages
        )
        page = next(here, None)
        if page is not None:
            page.last_use = next(self._clock)
            self._offer(page)
        if page_hashes and page_hashes[-1] in self.checkpoints:
            self.checkpoints.move_to_end(page_hashes[-1])

    def _offer(self, page: PageEntry) -> None:
        if page.locks == 0 and page.page_hash not in self._children:
            heapq.heappush(self._leaves, (page.last_use, page.page_hash))
            if len(self._leaves) > 64 + 4 * len(self.pages):
                self._leaves = [leaf for leaf in set(self._leaves) if self._is_leaf(*leaf)]
                heapq.heapify(self._leaves)

    def _is_leaf(self, last_use: int, page_hash: bytes) -> bool:
        page = self.pages.get(page_hash)
        if page is None or page.last_use != last_use or page.locks:
            return False
        return page_hash not in self._children

    def _evict_page(self, _space: str) -> bool:
        while self._leaves:
            last_use, page_hash = heapq.heappop(self._leaves)
            if self._is_leaf(last_use, page_hash):
                page = self.pages[page_hash]
                if self._refuses(page):
                    self._offer(page)
                    return False
                self._drop_page(page)
                return True
        return False

    def _refuses(self, entry: PageEntry | Checkpoint) -> bool:
        """Whether something has to be saved before it goes."""
        if self.keeps(entry):
            self.refused = entry
            return True
        return False

    def _drop_page(self, page: PageEntry) -> None:
        del self.pages[page.page_hash]
        for space in self.page_spaces:
            self._drop(space, page.page_hash)
        self._children[page.parent] -= 1
        if not self._children[page.parent]:
            del self._children[page.parent]
            parent = self.pages.get(page.parent)
            if parent is not None:
                parent.last_use = max(parent.last_use, page.last_use)
                self._offer(parent)

    # what trails

    def adopt_trailing(self, space: str, page_hash: bytes, slot: Resident) -> None:
        """Take over one trailing slot, which the caller holds next; a duplicate is freed."""
        if page_hash in self.residents[space]:
            self._spaces[space].free([slot.slot])
        else:
            self.residents[space][page_hash] = slot

    def hold(self, space: str, page_hashes: Iterable[bytes]) -> None:
        """Keep trailing slots until ``unhold``."""
        for page_hash in page_hashes:
            self.residents[space][page_hash].holders += 1

    def unhold(self, space: str, page_hashes: Iterable[bytes]) -> None:
        for page_hash in page_hashes:
            resident = self.residents[space][page_hash]
            resident.holders -= 1
            if not resident.holders:
                self._drop(space, page_hash)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Let a boundary hold its trailing slots, all of which are here."""
        if checkpoint.page_hash not in self.checkpoints:
            for space, page_hashes in checkpoint.holds.items():
                self.hold(space, page_hashes)
            self.checkpoints[checkpoint.page_hash] = checkpoint
        self.checkpoints.move_to_end(checkpoint.page_hash)

    def drop_checkpoint(self, page_hash: bytes) -> None:
        checkpoint = self.checkpoints.pop(page_hash)
        for space, page_hashes in checkpoint.holds.items():
            self.unhold(space, page_hashes)

    def _evict_checkpoint(self, space: str) -> bool:
        """Drop the oldest checkpoint that alone keeps a slot, else the oldest that helps."""
        residents = self.residents[space]
        shared: Counter[bytes] = Counter()
        for page_hash, checkpoint in self.checkpoints.items():
            if any(residents[held].holders == 1 for held in checkpoint.holds[space]):
                if self._refuses(checkpoint):
                    return False
                self.drop_checkpoint(page_hash)
                return True
            shared.update(checkpoint.holds[space])
        for page_hash, checkpoint in self.checkpoints.items():
            if any(residents[held].holders == shared[held] for held in checkpoint.holds[space]):
                if self._refuses(checkpoint):
                    return False
                self.drop_checkpoint(page_hash)  # only checkpoints keep it, and they follow
                return True
        return False

    # both

    def clear(self, scope: str | None) -> int:
        """Drop everything of a scope (None: of all) that nobody uses; returns slots freed."""
        before = sum(self.num_evicted.values())
        for page_hash, checkpoint in list(self.checkpoints.items()):
            if scope in (None, checkpoint.scope):
                self.drop_checkpoint(page_hash)
        stack = [p for p in self.pages.values() if scope in (None, p.scope)]
        while stack:  # tails first: a parent follows when its last child is gone
            page = stack.pop()
            if page.page_hash in self.pages and self._is_leaf(page.last_use, page.page_hash):
                parent = self.pages.get(page.parent)
                self._drop_page(page)
                if parent is not None:
                    stack.append(parent)
        return sum(self.num_evicted.values()) - before

    def _drop(self, space: str, page_hash: bytes) -> None:
        resident = self.residents[space].pop(page_hash)
        self._spaces[space].free([resident.slot])
        self.num_evicted[space] += 1
        self.on_evict(space, page_hash)


def _tell_nobody(_space: str, _page_hash: bytes) -> None:
    """Nobody has asked to be told of evictions."""
