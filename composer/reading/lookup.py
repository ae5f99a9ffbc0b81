"""Which prefix of a prompt the tiers hold: hashing, presence, and the boundary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import compress
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from composer.boundary import Bools, Requirement, longest_restorable, shortened_by
from composer.controller import HybridCacheController
from composer.page_hash import hash_pages, root_hash, scope_name, token_array
from composer.plan import StackPlan
from composer.record import record
from composer.residency.chains import Link
from composer.residency.reach import Reach
from composer.residency.tier import Residency
from composer.schema import EvictionPolicy
from composer.transfer import PoolTransfer

TIERS = ("device", "host", "storage")  # fastest first
Presence = Mapping[str, Bools]  # index space -> per page, whether it is held


class Tiers:
    """What the device and the host tier hold, and the one lock that guards both."""

    def __init__(
        self,
        plan: StackPlan,
        controller: HybridCacheController,
        eviction: EvictionPolicy = EvictionPolicy.lru,
    ) -> None:
        self.plan, self.controller = plan, controller
        self.lock = RLock()
        kinds = {space.window_pages is None for space in plan.spaces.values()}
        # with pages or trailing slots alone every page is a boundary, or there are none
        self.reach = Reach() if len(kinds) > 1 else None
        self.device, self.host = (
            Residency(tier, slots, plan.spaces, eviction=eviction, reach=self.reach)
            for tier, slots in (
                ("device", controller.device.spaces),
                ("host", controller.host.spaces),
            )
        )
        # the anchor first: hits are counted on it
        self.spaces = sorted(plan.spaces, key=lambda name: name != plan.spec.anchor)

        optional = {n: [a for a in s.arenas if not a.required] for n, s in plan.spaces.items()}
        # space -> pools that a prefix may lack, where there are any
        self.optional = {n: [p.name for a in o for p in a.pools] for n, o in optional.items() if o}
        self.layers = sorted({layer for pool in plan.spec.pools for layer in pool.layers})
        self._windows = [(name, plan.spaces[name].window_pages) for name in self.spaces]

    def look(self, page_hashes: Sequence[bytes], before: Here | None = None) -> Here:
        """What the device and the host tier hold of some pages.

        Args:
            page_hashes: The pages.
            before: What they held of these, and perhaps of more behind them, at an earlier look.
        """
        changes = self.device.changes + self.host.changes
        if before is None or before.changes != changes:
            both = self.device.presence(page_hashes), self.host.presence(page_hashes)
            return Here(changes, len(page_hashes), *both)
        return before.head(len(page_hashes))

    def requirements(self, presence: Iterable[Presence]) -> list[Requirement]:
        """What every index space demands of a prefix, given what any of the tiers hold."""
        first, *others = presence
        needs = []
        for space, window in self._windows:
            present = first[space]
            for one in others:
                present = present | one[space]
            needs.append(Requirement(space, present, window))
        return needs


class Here(NamedTuple):
    """What the device and the host tier held of some pages, ``changes`` after their start."""

    changes: int
    num_pages: int
    device: Presence
    host: Presence

    def head(self, num_pages: int) -> Here:
        """The same of the first pages."""
        if num_pages == self.num_pages:
            return self
        device, host = (
            {space: flags[:num_pages] for space, flags in one.items()}
            for one in (self.device, self.host)
        )
        return Here(self.changes, num_pages, device, host)

    def tiers(self, stored: Presence) -> dict[str, Presence]:
        """Everything by tier, fastest first."""
        return {"device": self.device, "host": self.host, "storage": stored}


@record
class Prompt:
    """A prompt's full pages by hash, under one salt and extra key."""

    num_tokens: int
    hashes: list[bytes]
    root: bytes
    scope: str

    @classmethod
    def of(
        cls, tokens: Any, page_size: int, salt: str | None = None, extra_key: str | None = None
    ) -> Prompt:
        """Hash a prompt.

        Args:
            tokens: Token ids: a list, an integer array or a CPU tensor.
            page_size: Tokens per page.
            salt: Separates tenants.
            extra_key: Separates what else changes the cache's bytes, e.g. an adapter.
        """
        ids = token_array(tokens)
        root = root_hash(salt, extra_key)
        return cls(len(ids), hash_pages(ids, page_size, root), root, scope_name(salt, extra_key))

    def links(self, pages: Iterable[int]) -> list[Link]:
        """Of some pages, each one's hash and the one before it."""
        hashes, root = self.hashes, self.root
        return [(hashes[page], hashes[page - 1] if page else root) for page in pages]


@record
class Match:
    """The longest restorable prefix of a prompt, as far as a lookup can tell.

    Attributes:
        num_pages: Length of the prefix in pages, and in tokens ``num_tokens``.
        page_tiers: Per page of the prefix, the fastest tier that holds it: its index in ``TIERS``.
        hit_tokens: Tokens of the prefix by that tier.
        shortened_by: The index space that kept the prefix from reaching as far as the anchor's
            pages do; None where nothing did.
        limit: Pages that may match at all: the prompt's full pages, or ``max_tokens``.
        stored: Per index space and page, what storage was seen to hold, and may be fetched.
        not_fetched: Why nothing is promised of what storage may hold; None: nothing is held back.
        here: What the tiers above storage were seen to hold.
    """

    prompt: Prompt
    num_pages: int
    num_tokens: int
    page_tiers: npt.NDArray[np.int8] = field(repr=False)
    hit_tokens: Mapping[str, int]
    shortened_by: str | None
    limit: int
    stored: Presence = field(repr=False)
    not_fetched: str | None
    here: Here = field(repr=False)


class Lookup:
    """Finds the longest restorable prefix over all tiers."""

    def __init__(self, tiers: Tiers, min_tokens: int = 0) -> None:
        self._tiers, self._min_tokens = tiers, min_tokens
        self._page_size = tiers.plan.page_size
        self._names = {
            (tier, space): (f"page_queries.{tier}.{space}", f"page_hits.{tier}.{space}")
            for tier in TIERS
            for space in tiers.spaces
        }

    def match(self, prompt: Prompt, max_tokens: int | None = None) -> Match:
        """Look a prompt up; storage is asked at most once, and only for what is not here."""
        limit = len(prompt.hashes)
        if max_tokens is not None:
            limit = min(limit, max(max_tokens, 0) // self._page_size)
        hashes, tiers = prompt.hashes[:limit], self._tiers
        with tiers.lock:
            here = tiers.look(hashes)
        self._count({"device": here.device, "host": here.host})
        stored, not_fetched = self._fetchable(prompt, here)
        needs = tiers.requirements([here.device, here.host, stored])
        boundary = longest_restorable(needs, limit)
        if boundary:
            with tiers.lock:
                tiers.device.touch(hashes[:boundary])
                tiers.host.touch(hashes[:boundary])
        page_tiers = self.page_tiers(here.tiers(stored), boundary)
        return Match(
            prompt=prompt,
            num_pages=boundary,
            num_tokens=boundary * self._page_size,
            page_tiers=page_tiers,
            hit_tokens=self.count_tokens(page_tiers),
            shortened_by=shortened_by(needs, boundary) if boundary < limit else None,
            limit=limit,
            stored=stored,
            not_fetched=not_fetched,
            here=here,
        )

    def _fetchable(self, prompt: Prompt, here: Here) -> tuple[Presence, str | None]:
        """What storage holds of the first pages, and why it is not counted on where it is not.

        A promise of what would never be fetched is none.
        """
        limit = here.num_pages
        above = self._tiers.requirements([here.device, here.host])
        known = longest_restorable(above, limit)
        if known < limit and (limit - known) * self._page_size >= self._min_tokens:
            stored = self.ask_storage(prompt, above)
            if not self._min_tokens:
                return stored, None
            needs = self._tiers.requirements([here.device, here.host, stored])
            boundary = longest_restorable(needs, limit)
            page_tiers = self.page_tiers(here.tiers(stored), boundary)
            if not 0 < self.count_tokens(page_tiers)["storage"] < self._min_tokens:
                return stored, None
        nothing = {space: np.zeros(limit, dtype=np.bool_) for space in self._tiers.spaces}
        if known == limit:
            return nothing, None
        self._tiers.controller.counters.add("prefetch_below_threshold")
        return nothing, f"below threshold {self._min_tokens}"

    def _count(self, presence: Mapping[str, Presence]) -> None:
        counts = {}
        for tier, spaces in presence.items():
            for space, flags in spaces.items():
                queries, hits = self._names[tier, space]
                counts[queries] = len(flags)
                counts[hits] = int(np.count_nonzero(flags))
        self._tiers.controller.counters.add_all(counts)

    def count_tokens(self, page_tiers: npt.NDArray[np.int8]) -> dict[str, int]:
        """Tokens by the fastest tier that holds them, of pages as ``page_tiers`` tells them."""
        counts = np.bincount(page_tiers, minlength=len(TIERS)).tolist()
        return {tier: n * self._page_size for tier, n in zip(TIERS, counts, strict=False)}

    def page_tiers(self, presence: Mapping[str, Presence], boundary: int) -> npt.NDArray[np.int8]:
        """Per page of a prefix, the fastest tier (index in TIERS) that holds its anchor page.

        Without an anchor every page counts where the state is.
        """
        space = self._tiers.spaces[0]
        tiers = np.empty(boundary, dtype=np.int8)
        tiers.fill(len(TIERS))
        for index in reversed(range(len(TIERS))) if boundary else ():
            tiers[presence[TIERS[index]][space][:boundary]] = index
        if boundary and self._tiers.plan.spaces[space].window_pages is not None:
            tiers[:] = tiers[-1]
        return tiers

    def ask_storage(self, prompt: Prompt, here: Sequence[Requirement]) -> dict[str, Bools]:
        """Per index space and page, whether storage holds what is not here, in one call."""
        stored = {need.name: np.zeros(len(need.present), dtype=np.bool_) for need in here}
        asked = {need.name: ~need.present for need in here}
        transfers = [
            PoolTransfer(
                space, page_hashes=list(compress(prompt.hashes, absent)), scope=prompt.scope
            )
            for space, absent in asked.items()
        ]
        results = self._tiers.controller.exists(transfers)
        for result in results:
            stored[result.pool][asked[result.pool]] = result.ok
        if self._tiers.controller.backend is not None:
            self._count({"storage": {one.pool: one.ok for one in results if len(one.ok)}})
        return stored
