"""Faults that could have been made in the product, each with the model that should show it.

A fault is a function of pytest's MonkeyPatch that lets one production function misbehave. The
names begin with the invariant that it breaks.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from composer.controller import HybridCacheController
from composer.free_list import FreeList
from composer.guard import Guard
from composer.objects import ArenaObjects
from composer.quarantine import Quarantine
from composer.reading import landing, lookup, prefetch
from composer.reading.landing import Held
from composer.reading.prefetch import Fetch
from composer.residency.chains import Chains
from composer.residency.pins import Pins
from composer.residency.reach import Reach
from composer.residency.tier import Residency
from composer.stack import Stack
from composer.writing import commit, writer
from composer.writing.ledger import Ledger

Mutant = Callable[[pytest.MonkeyPatch], None]
BOUNDARY = "boundary"  # shown by the property of hits, not by the machine
MUTANTS: dict[str, tuple[str, Mutant]] = {}  # name -> case of the machine, fault


def shown_by(case: str) -> Callable[[Mutant], Mutant]:
    def add(mutant: Mutant) -> Mutant:
        MUTANTS[mutant.__name__] = (case, mutant)
        return mutant

    return add


def nothing(*_: object, **__: object) -> None:
    """What a forgotten call does."""


# 2: all or nothing


@shown_by("kv+state")
def i2_half_a_reservation_is_lost(patch):
    def take(self, counts):
        self.make_room(counts)
        taken = {space: self._spaces[space].allocate(count) for space, count in counts.items()}
        return None if None in taken.values() else taken

    patch.setattr(Residency, "take", take)


@shown_by("kv+extra")
def i2_a_page_is_adopted_without_all_its_spaces(patch):
    true_adopt = landing.adopt

    def adopt(tier, prompt, arrived, pins, failed=()):
        pages = sorted({*failed, *(page for one in arrived.values() for page in one.pages)})
        slots = {s: dict(zip(one.pages, one.slots, strict=True)) for s, one in arrived.items()}
        all_of_them = {
            space: landing.Arrived(
                pages,
                [slots.get(space, {}).get(page, 0) for page in pages],
                [False] * len(pages),
            )
            for space in tier.page_spaces
        }
        true_adopt(tier, prompt, {**arrived, **all_of_them} if pages else arrived, pins)

    patch.setattr(prefetch, "adopt", adopt)


@shown_by("kv")
def i2_a_cancelled_fetch_keeps_its_slots(patch):
    patch.setattr(Fetch, "_give_back", nothing)


@shown_by("kv+window+state")
def i2_half_a_checkpoint_is_kept(patch):
    def add_checkpoint(tier, prompt, wanted):
        here = {
            space: tuple(h for h in wanted[space] if h in tier.residents[space])
            for space in tier.trailing
        }
        held = [hashes for hashes in here.values() if hashes]
        if held:
            tier.add_checkpoint(landing.Checkpoint(held[0][-1], prompt.scope, here))

    patch.setattr(landing, "add_checkpoint", add_checkpoint)
    patch.setattr(prefetch, "add_checkpoint", add_checkpoint)


# 5: no buffer is reused while I/O may touch it


@shown_by("kv")
def i5_a_late_call_is_forgotten(patch):
    patch.setattr(Quarantine, "_begin", nothing)


@shown_by("kv")
def i5_a_lease_that_is_loading_frees_its_slots(patch):
    true_release = Held.release

    def release(self):
        true_release(self)
        for space, free in self._tiers.controller.device.spaces.items():
            used = {one.slot for one in self._tiers.device.residents[space].values()}
            coming = [n for n in range(free.num_slots) if free._taken[n] and n not in used]
            free.free(coming[:1])

    patch.setattr(Held, "release", release)


@shown_by("kv")
def i5_a_lease_keeps_nothing(patch):
    true_add = Pins.add

    def add(self, wanted):
        if self._holder != "lease":
            true_add(self, wanted)

    patch.setattr(Pins, "add", add)


@shown_by("kv")
def i5_a_slot_is_freed_twice(patch):
    true_free = FreeList.free

    def free(self, ids):
        true_free(self, ids)
        self._free.extend(list(ids)[:1])

    patch.setattr(FreeList, "free", free)


# 6: saved means seen


@shown_by("kv")
def i6_written_counts_as_saved(patch):
    true_wrote = Ledger.wrote
    patch.setattr(
        Ledger, "wrote", lambda self, *slots: true_wrote(self, *slots[:2], [True] * len(slots[2]))
    )


@shown_by("kv")
def i6_a_refused_write_counts_as_written(patch):
    true_put = HybridCacheController._put
    patch.setattr(
        HybridCacheController, "_put", lambda *args: np.ones_like(true_put(*args), np.bool_)
    )


@shown_by("kv")
def i6_another_store_is_thought_to_have_everything(patch):
    patch.setattr(writer.Writer, "attached", nothing)


# 7: a failure is a miss


@shown_by("kv")
def i7_a_failing_store_fails_its_caller(patch):
    def call(_self, _name, call, _late=None):
        return call()

    patch.setattr(Guard, "call", call)


@shown_by("kv")
def i7_failures_are_not_counted(patch):
    patch.setattr(Guard, "_failed", nothing)


# 9: isolation


@shown_by("kv")
def i9_a_salt_does_not_reach_the_hash(patch):
    true_root = lookup.root_hash
    patch.setattr(lookup, "root_hash", lambda _salt, extra_key: true_root(None, extra_key))


@shown_by("kv")
def i9_a_salt_does_not_reach_the_keys(patch):
    patch.setattr(lookup, "scope_name", lambda _salt, _extra_key: "-")


@shown_by("kv")
def i9_one_tenants_clear_clears_all(patch):
    true_clear = Stack.clear
    patch.setattr(Stack, "clear", lambda self, _scope=None: true_clear(self))


@shown_by("kv+draft")
def i9_a_missing_pool_shows_what_was_there_before(patch):
    patch.setattr(ArenaObjects, "wipe", nothing)


# 11: chain from the root


@shown_by("kv")
def i11_pages_are_evicted_under_their_continuation(patch):
    def link(self, page, _above):
        page.above = None
        true_link(self, page, None)

    true_link = Chains._link
    patch.setattr(Chains, "_link", link)


@shown_by("kv")
def i11_pages_in_use_are_evicted(patch):
    def evict(self, space, number):
        locks = {page: page.locks for page in self.pages.values()}
        for page in locks:
            page.locks = 0
            self._offer(page)
        evicted = true_evict(self, space, number)
        for page, count in locks.items():
            page.locks = count
        return evicted

    true_evict = Chains._evict_pages
    patch.setattr(Chains, "_evict_pages", evict)


@shown_by("kv+state")
def i11_pages_that_no_boundary_can_use_are_taken_for_useful(patch):
    patch.setattr(Reach, "useful", lambda _self, _page_hash: True)


@shown_by("kv+state")
def i11_a_checkpoint_loses_its_state_to_a_lease_that_ends(patch):
    def unhold(self, space, page_hashes, holder):
        true_unhold(self, space, page_hashes, holder)
        for page_hash in page_hashes:
            if page_hash in self.residents[space]:
                self._drop(space, page_hash)
        self._free_dropped()

    true_unhold = Residency.unhold
    patch.setattr(Residency, "unhold", unhold)


# 12: committed bytes never change


@shown_by("kv")
def i12_a_page_committed_twice_moves_to_the_later_slot(patch):
    true_adopt = commit._Operation.adopt_pages

    def adopt_pages(self):
        spaces, given = self._device.page_spaces, self._slots.pages
        for page, page_hash in enumerate(self._prompt.hashes[self.first :]):
            if page_hash in self._device.pages:
                one = self._device.pages[page_hash]
                before, one.slots = one.slots, tuple(given[space][page] for space in spaces)
                for space, old, new in zip(spaces, before, one.slots, strict=True):
                    self._device.give_back({space: [old]})
                    self._taken[space].add(new)
        return true_adopt(self)

    patch.setattr(commit._Operation, "adopt_pages", adopt_pages)


@shown_by("kv")
def i12_a_backup_copies_other_pages(patch):
    true_backup = HybridCacheController.backup

    def turned(one):
        return replace(one, device_ids=[*one.device_ids[1:], *one.device_ids[:1]])

    patch.setattr(
        HybridCacheController,
        "backup",
        lambda self, found: true_backup(self, [*map(turned, found)]),
    )


@shown_by("kv")
def i12_what_a_lease_reads_is_handed_out(patch):
    true_take = Residency.take

    def take(self, counts):
        taken = true_take(self, counts)
        if taken is None and self.tier == "device":
            used = {s: [one.slot for one in self.residents[s].values()] for s in counts}
            taken = {space: used[space][:count] for space, count in counts.items()}
        return taken

    patch.setattr(Residency, "take", take)
