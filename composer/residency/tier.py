"""Which pages, windows and states one tier holds, and what it gives up when it is full.

Pages of spaces that keep every page form chains: a page is evicted only when no resident page
continues it, so that a tier always loses a prompt's tail before its head. What trails (windows,
states) is kept by checkpoints, each a boundary that can be dropped alone. Among them the eviction
policy decides; but pages that no boundary can use go before all others, and a checkpoint whose
page is nowhere any more goes with it. Nothing here is thread-safe: the caches' lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from composer.free_list import FreeList
from composer.group import Reservation, reserve
from composer.plan import SpacePlan
from composer.residency.chains import Chains
from composer.residency.entries import Checkpoint, PageEntry, Resident
from composer.residency.eviction import EvictionQueue, Protected
from composer.residency.reach import Reach
from composer.schema import EvictionPolicy

__all__ = ["Checkpoint", "PageEntry", "Residency", "Resident"]


class Residency(Chains):
    """The contents of one tier: chains of pages, and what trails. Arguments as ``Chains``.

    Attributes:
        trailing: Index space -> pages before a boundary that it keeps.
        checkpoints: By the hash of the last page before the boundary.
        on_drop: Told of each checkpoint that is given up.
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
        super().__init__(tier, spaces, plans, eviction=eviction, reach=reach)
        self.trailing = {
            name: plan.window_pages for name, plan in plans.items() if plan.window_pages is not None
        }
        self.checkpoints: dict[bytes, Checkpoint] = {}
        self.on_drop: Callable[[bytes], None] = lambda _page_hash: None
        self._oldest = EvictionQueue(self.checkpoints, self._rank)
        held = [spaces[name].num_slots // pages for name, pages in self.trailing.items()]
        number = min(held, default=0) if self._has_segments else 0
        self._protected_checkpoints = Protected(self.checkpoints, number, self._demote_checkpoint)
        self._num_pinned = dict.fromkeys(self.trailing, 0)  # slots that operations keep
        self._dropped: dict[str, dict[bytes, int]] = {}  # not freed yet
        if reach is not None:
            reach.listen(self._found_useless, self._found_lost)

    # room

    def make_room(self, counts: Mapping[str, int]) -> bool:
        """Evict until so many slots are free in each space; False when that cannot be.

        What trails comes first: where it has no room, no page is lost in vain.
        """
        self.refused = None
        short = [space for space in counts if self._spaces[space].num_free < counts[space]]
        if any(not self._can_have(space, counts[space]) for space in short):
            return False
        for space in sorted(short, key=lambda space: space not in self.trailing):
            free = self._spaces[space]
            evict = self._evict_checkpoints if space in self.trailing else self._evict_pages
            while (missing := counts[space] - free.num_free) > 0:
                if not evict(space, missing):
                    return False
        return True

    def _can_have(self, space: str, needed: int) -> bool:
        free = self._spaces[space]
        if space not in self.trailing:
            return needed <= free.num_slots
        evictable = len(self._trailing[space]) - self._num_pinned[space]
        return needed <= free.num_free + evictable

    def take(self, counts: Mapping[str, int]) -> Reservation | None:
        """Slots of several spaces, after evicting for them; all or none."""
        return reserve(self._spaces, counts) if self.make_room(counts) else None

    # what trails

    def adopt_trailing(self, space: str, page_hash: bytes, slot: Resident) -> None:
        """Take over one trailing slot, which the caller holds next; a duplicate is freed."""
        known = self._trailing[space]
        if page_hash in known:
            self._spaces[space].free([slot.slot])
        else:
            known[page_hash] = slot
            self.changes += 1

    def hold(self, space: str, page_hashes: Sequence[bytes], holder: str) -> None:
        """Keep trailing slots until ``unhold``."""
        self._holders.add(holder, space, len(page_hashes))
        for page_hash in page_hashes:
            resident = self._trailing[space][page_hash]
            self._num_pinned[space] += resident.holders == resident.keepers
            resident.holders += 1

    def unhold(self, space: str, page_hashes: Sequence[bytes], holder: str) -> None:
        self._holders.add(holder, space, -len(page_hashes))
        try:
            for page_hash in page_hashes:
                resident = self._trailing[space][page_hash]
                resident.holders -= 1
                self._num_pinned[space] -= resident.holders == resident.keepers
                if not resident.holders:
                    self._drop(space, page_hash)
        finally:
            self._free_dropped()

    def touch(self, page_hashes: Sequence[bytes], *, hit: bool = False) -> None:
        super().touch(page_hashes, hit=hit)
        checkpoint = self.checkpoints.get(page_hashes[-1]) if page_hashes else None
        if checkpoint is not None:
            self._use(checkpoint, hit)
            if hit:
                self._protected_checkpoints.hit([checkpoint.page_hash])

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Let a boundary hold its trailing slots, all of which are here."""
        name = checkpoint.page_hash
        known = self.checkpoints.get(name)
        if known is None:
            now = next(self._clock)
            known = Checkpoint(name, checkpoint.scope, checkpoint.holds, arrived=now)
            self._keep(known, 1)
            self.checkpoints[name] = known
            if self._reach is not None:
                self._reach.add_checkpoint(name)
        known.last_use = next(self._clock)
        self._oldest.offer(name, known)

    def drop_checkpoint(self, page_hash: bytes) -> None:
        """Give a boundary up, and what it alone holds."""
        try:
            self._let_go(page_hash)
        finally:
            self._free_dropped()

    def _let_go(self, page_hash: bytes) -> None:
        """``drop_checkpoint``, but the caller frees what was dropped."""
        self._keep(self.checkpoints.pop(page_hash), -1)
        self._protected_checkpoints.drop(page_hash)
        self.on_drop(page_hash)
        if self._reach is not None:
            self._reach.drop_checkpoint(page_hash)

    def _demote_checkpoint(self, page_hash: bytes, checkpoint: Checkpoint) -> None:
        checkpoint.last_use = next(self._clock)
        self._oldest.offer(page_hash, checkpoint)

    def _keep(self, checkpoint: Checkpoint, by: int) -> None:
        for space, page_hashes in checkpoint.holds.items():
            residents = self._trailing[space]
            for page_hash in page_hashes:
                resident = residents[page_hash]
                resident.holders += by
                resident.keepers += by
                if not resident.holders:
                    self._drop(space, page_hash)

    def _drop(self, space: str, page_hash: bytes) -> None:
        """Give a trailing slot up, which ``_free_dropped`` frees."""
        resident = self._trailing[space].pop(page_hash)
        self._dropped.setdefault(space, {})[page_hash] = resident.slot

    def _free_dropped(self) -> None:
        dropped, self._dropped = self._dropped, {}
        for space, slots in dropped.items():
            self._gone(space, list(slots))
            self._spaces[space].free(list(slots.values()))

    def _found_lost(self, page_hash: bytes) -> None:
        if page_hash in self.checkpoints:
            self.drop_checkpoint(page_hash)

    def _evict_checkpoints(self, space: str, number: int) -> int:
        """Drop checkpoints until so many slots of a space are given up; returns how many were."""
        residents = self._trailing[space]
        before = len(residents)
        try:
            while len(residents) > before - number and (one := self._next_out(space)) is not None:
                self._let_go(one.page_hash)
        finally:
            self._free_dropped()
        return before - len(residents)

    def _next_out(self, space: str) -> Checkpoint | None:
        """The first checkpoint that alone keeps a slot, else the first that helps."""
        residents = self._trailing[space]
        aside: list[Checkpoint] = []
        found = None
        while found is None and (one := self._oldest.pop()) is not None:
            if any(residents[held].holders == 1 for held in one.holds[space]):
                found = one
            else:
                aside.append(one)
        if found is None:  # slots that only checkpoints share: the others follow
            found = next((one for one in aside if self._shares_only(one, space)), None)
        for one in aside:
            if one is not found:
                self._oldest.offer(one.page_hash, one)
        if found is not None and self.keeps(found):
            self.refused = found
            self._oldest.offer(found.page_hash, found)
            return None
        return found

    def _shares_only(self, checkpoint: Checkpoint, space: str) -> bool:
        slots = map(self._trailing[space].__getitem__, checkpoint.holds[space])
        return any(slot.holders == slot.keepers for slot in slots)

    # both

    def clear(self, scope: str | None) -> int:
        """Drop everything of a scope (None: of all) that nobody uses; returns slots freed."""
        before = sum(self.num_evicted.values())
        for page_hash, checkpoint in list(self.checkpoints.items()):
            if scope in (None, checkpoint.scope):
                self.drop_checkpoint(page_hash)
        self._offer_fresh()
        dropped: list[PageEntry] = []
        stack = [p for p in self.pages.values() if scope in (None, p.scope)]
        while stack:  # tails first: a parent follows when its last child is gone
            page = stack.pop()
            if page.is_here and self._is_leaf(page):
                parent = self._drop_page(page)
                dropped.append(page)
                if parent is not None:
                    stack.append(parent)
        self._free_pages(dropped)
        return sum(self.num_evicted.values()) - before
