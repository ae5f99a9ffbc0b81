"""Faults of what a hit is: boundaries that do not hold, and poison that escapes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from composer import boundary
from composer.controller import HybridCacheController
from composer.objects import ArenaObjects, ReadCheck
from composer.reading import lookup, operation
from composer.reading.landing import Landing
from composer.reading.load_back import Load
from composer.spec import ModelSpec
from composer.writing import commit
from tests.machine_mutants import BOUNDARY, nothing, shown_by

# 3: boundaries


def minimum_of_maxima(requirements, num_pages, limit=None):
    reach = min((boundary.longest(one.allowed()) for one in requirements), default=num_pages)
    return reach if limit is None else min(reach, limit)


@shown_by("kv+state")
def i3_the_least_of_what_pools_allow_counts(patch):
    patch.setattr(lookup, "longest_restorable", minimum_of_maxima)


@shown_by("kv+state")
def i3_the_least_counts_after_a_shortening(patch):
    patch.setattr(operation, "longest_restorable", minimum_of_maxima)


@shown_by("kv+window")
def i3_a_boundary_is_published_without_its_window(patch):
    true_call = commit._Operation.checkpoint

    def checkpoint(self, tokens, state):
        made = true_call(self, tokens, state)
        if made is None:
            end = tokens // self._plan.page_size
            held = dict.fromkeys(self._device.trailing, ())
            made = commit.Checkpoint(self._prompt.hashes[end - 1], self._prompt.scope, held)
            self._device.add_checkpoint(made)
        return made

    patch.setattr(commit._Operation, "checkpoint", checkpoint)


@shown_by("kv+state")
def i3_a_boundary_counts_without_its_state(patch):
    true_call = lookup.Tiers.requirements
    patch.setattr(
        lookup.Tiers, "requirements", lambda self, presence: true_call(self, presence)[:1]
    )


@shown_by("kv")
def i3_what_was_there_before_counts_and_not_what_was_read(patch):
    def prefetch(self, transfers):
        true_results = true_prefetch(self, transfers)
        return [replace(one, ok=np.ones_like(one.ok)) for one in true_results]

    true_prefetch = HybridCacheController.prefetch
    patch.setattr(HybridCacheController, "prefetch", prefetch)


@shown_by("kv")
def i3_a_limit_is_ignored(patch):
    true_match = lookup.Lookup.match
    patch.setattr(lookup.Lookup, "match", lambda self, prompt, _=None: true_match(self, prompt))


def kept_pages(patch, count: Callable[[int, int], int]) -> None:
    """Count the pages of a window, of so many tokens and pages of so many, in another way."""

    def window_pages(self, pools):
        windows = [pool.window_tokens for pool in pools]
        return max(1 if one is None else count(one, self.page_size) for one in windows)

    patch.setattr(ModelSpec, "window_pages", window_pages)


@shown_by(BOUNDARY)
def i3_a_window_is_rounded_down(patch):
    kept_pages(patch, lambda tokens, page_size: max(tokens // page_size, 1))


@shown_by(BOUNDARY)
def i3_a_window_has_a_page_too_many(patch):
    kept_pages(patch, lambda tokens, page_size: tokens // page_size + 1)


@shown_by(BOUNDARY)
def i3_a_follower_has_the_window_of_its_source(patch):
    true_count = ModelSpec.window_pages
    patch.setattr(ModelSpec, "window_pages", lambda self, pools: true_count(self, pools[:1]))


@shown_by(BOUNDARY)
def i3_an_optional_pool_shortens_a_hit(patch):
    true_init = HybridCacheController.__init__

    def init(self, *args, **more):
        true_init(self, *args, **more)
        self._required = self._objects

    patch.setattr(HybridCacheController, "__init__", init)


# 4: a poisoned slot never escapes


def check_less(patch, of: str) -> None:
    """Take one kind of refused object for good."""
    true_check = ArenaObjects.check

    def check(self, scope, slots, page_hashes, num_bytes):
        found = true_check(self, scope, slots, page_hashes, num_bytes)
        return ReadCheck(np.ones_like(found.ok), {}) if of in found.refused else found

    patch.setattr(ArenaObjects, "check", check)


@shown_by("kv")
def i4_checksums_are_not_compared(patch):
    check_less(patch, "wrong_checksum")


@shown_by("kv")
def i4_trailers_are_not_compared(patch):
    check_less(patch, "wrong_identity")


@shown_by("kv")
def i4_short_reads_are_taken(patch):
    check_less(patch, "wrong_size")


@shown_by("kv")
def i4_a_layer_is_not_waited_for(patch):
    patch.setattr(Load, "wait", nothing)


@shown_by("kv+draft")
def i4_a_missing_draft_pool_is_not_told(patch):
    patch.setattr(Landing, "degraded", lambda _self: ())


@shown_by("kv+state")
def i4_a_lease_names_a_stale_state(patch):
    true_slots = Landing.slots

    def slots(self):
        found = true_slots(self)
        states = self._tiers.device.residents["state"]
        others = [one.slot for one in states.values()]
        return {**found, "state": others[:1] if found["state"] and others else found["state"]}

    patch.setattr(Landing, "slots", slots)
