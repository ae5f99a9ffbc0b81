"""One restore: what is pinned and reserved for it, step by step.

A tier without room shortens the prefix to the longest boundary that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from composer.boundary import (
    Bools,
    Requirement,
    longest,
    longest_restorable,
    restorable_lengths,
    shortened_by,
)
from composer.group import Reservation
from composer.reading.fetch_plan import FetchPlan
from composer.reading.landing import Landing, add_checkpoint
from composer.reading.lease import Lease
from composer.reading.load_back import Load
from composer.reading.lookup import TIERS, Lookup, Match, Presence, Tiers
from composer.reading.prefetch import Fetch, Patience, Prefetcher
from composer.reading.report import Report
from composer.residency.pins import Pins
from composer.residency.tier import Checkpoint, PageEntry, Residency

Entry = PageEntry | Checkpoint
Save = Callable[[Entry], None]  # what the device tier is about to give up


class Operation:
    """One restore.

    Attributes:
        boundary: Pages that are still promised; shrinks from step to step.
    """

    def __init__(self, tiers: Tiers, match: Match, prefetcher: Prefetcher) -> None:
        self._tiers, self._match, self._prompt = tiers, match, match.prompt
        self._controller = tiers.controller
        self.boundary = match.num_pages
        self._hashes = match.prompt.hashes[: match.num_pages]
        self._stored: Presence = {s: f[: match.num_pages] for s, f in match.stored.items()}
        self._here = match.here.head(match.num_pages)
        self._pins: Sequence[Pins] = ()  # of the device and of the host tier
        self._pinned: tuple[int, int] | None = None  # at what boundary, after how many changes
        self._prefetcher = prefetcher
        self._fetch: Fetch | None = None
        self._others: list[Fetch] = []
        self._cut: str | None = None
        self._late: str | None = None
        self._at_start: dict[str, Presence] | None = None  # None: as the match found it
        self._from: dict[str, dict[str, list[int]]] = {"host": {}, "device": {}}  # pages to fetch
        self._taken: dict[str, Reservation] = {"host": {}, "device": {}}

    def stay(self) -> Landing | None:
        """Keep the prefix where the device tier has all of it; None: something has to move."""
        tiers = self._tiers
        with tiers.lock:
            here = tiers.look(self._hashes, self._here)
            if self._missing_pages(tiers.requirements([here.device])):
                return None
            wanted = self._wanted(self.boundary)
            landing = Landing(tiers, self._prompt, wanted, {}, {}, ())
            landing.end(None)
        if here is not self._here:
            self._at_start = here.tiers(self._stored)
        return landing

    def look_again(self, lookup: Lookup) -> None:
        """Ask storage for what has been evicted from the tiers above it since the match."""
        tiers = self._tiers
        with tiers.lock:
            now = tiers.look(self._hashes, self._here)
        if now is self._here:
            return
        needs = tiers.requirements([now.device, now.host, self._stored])
        if longest_restorable(needs, len(self._hashes), self.boundary) < self.boundary:
            here = tiers.requirements([now.device, now.host])
            self._stored = lookup.ask_storage(self._prompt, here)

    def await_coming(self, patience: Patience) -> None:
        """Wait for what others fetch of this prefix."""
        self._others = self._prefetcher.coming(self._hashes)
        if not all(fetch.wait(patience.left_s) for fetch in self._others):
            self._late = "prefetch_late"

    def reserve_host(self) -> None:
        """Take host slots for what only storage holds, as many as fetches may have.

        What is still on its way for another is not fetched once more.
        """
        with self._tiers.lock:
            for fetch in (one for one in self._others if not one.ended):
                self._stored = fetch.without(self._hashes, self._stored)
            self._at_start = self._present()
            self._reserve(self._tiers.host, TIERS, self._prefetcher.room())

    def prefetch(self, patience: Patience) -> None:
        """Read what only storage holds, and wait for it."""
        if not self._taken["host"]:
            return
        fetch = self.start_fetch()
        if patience.left_s is None:
            fetch.run()
            return
        self._prefetcher.submit(fetch)
        if not fetch.wait(patience.left_s):
            self._late = "prefetch_late"

    def start_fetch(self) -> Fetch:
        """Register the fetch of what only storage holds, into the slots that were taken for it."""
        with self._tiers.lock:
            taken, self._taken["host"] = self._taken["host"], {}
            pages = {space: self._from["host"][space] for space in taken}
            plan = FetchPlan(self._prompt, self.boundary, self._wanted(self.boundary), pages, taken)
            self._fetch = self._prefetcher.start(plan)
        return self._fetch

    def reserve_device(self, save: Save) -> None:
        """Take device slots for what is only in host memory.

        What the device tier has to save first is saved without the caches' lock.
        """
        while True:
            with self._tiers.lock:
                first = self._reserve(self._tiers.device, sources=("device", "host"))
            if first is None:
                return
            save(first)

    def land(self) -> Landing:
        """Hand over what is reserved and pinned."""
        taken, self._taken["device"] = self._taken["device"], {}
        pins, self._pins = self._pins, ()
        wanted = self._wanted(self.boundary)
        return Landing(self._tiers, self._prompt, wanted, self._from["device"], taken, pins)

    def lease(self, lookup: Lookup, landing: Landing, load: Load) -> Lease:
        """What the caller gets; it pins the prefix by itself once it is there."""
        tiers, boundary = self._tiers, self.boundary
        with tiers.lock:
            add_checkpoint(tiers.host, self._prompt, self._wanted(boundary))
            for tier in (tiers.device, tiers.host):
                tier.touch(self._hashes[:boundary], hit=True)
            slots, degraded = landing.slots(), landing.degraded()
        spaces = tiers.plan.spaces
        page_tiers, hit_tokens = self._match.page_tiers, self._match.hit_tokens
        if self._at_start is not None:
            page_tiers = lookup.page_tiers(self._at_start, boundary)
            hit_tokens = lookup.count_tokens(page_tiers)
        lease = Lease(
            num_pages=boundary,
            num_tokens=boundary * tiers.plan.page_size,
            pages={s: ids for s, ids in slots.items() if not spaces[s].is_state},
            states={s: ids[-1] for s, ids in slots.items() if spaces[s].is_state and ids},
            hit_tokens=hit_tokens,
            page_tiers=page_tiers,
            report=self._report(),
            shortened_by=self._cut or self._match.shortened_by,
            degraded=degraded,
            _release=landing.held.release,
            _wait=load.wait,
        )
        self._count(lease)
        return lease

    def _count(self, lease: Lease) -> None:
        counts = {f"hit_tokens.{tier}": count for tier, count in lease.hit_tokens.items()}
        counts |= {"restores": 1, "query_tokens": self._prompt.num_tokens}
        counts |= {f"restores_degraded.{pool}": 1 for pool in lease.degraded}
        if lease.shortened_by is not None:
            counts[f"restores_shortened.{lease.shortened_by}"] = 1
        self._controller.counters.add_all(counts)

    def _report(self) -> Report:
        """What became of the match."""
        cut = self._cut or self._match.shortened_by
        reads = [] if self._fetch is None else self._fetch.results
        return Report.of(self._match.num_pages, self.boundary, cut, reads)

    def close(self) -> None:
        """Give back what was not adopted, and let go."""
        if self._fetch is not None:
            self._fetch.let_go()
        with self._tiers.lock:
            self._tiers.host.give_back(self._taken["host"])
            self._tiers.device.give_back(self._taken["device"])
            self._unpin()

    def _present(self) -> dict[str, Presence]:
        self._here = self._tiers.look(self._hashes, self._here)
        return self._here.tiers(self._stored)

    def _wanted(self, boundary: int) -> dict[str, list[bytes]]:
        return {
            space: self._hashes[self._first(space, boundary) : boundary]
            for space in self._tiers.spaces
        }

    def _first(self, space: str, boundary: int) -> int:
        window = self._tiers.plan.spaces[space].window_pages
        return 0 if window is None else max(boundary - window, 0)

    def _reserve(
        self, tier: Residency, sources: Sequence[str], most: Mapping[str, int] | None = None
    ) -> Entry | None:
        """Take slots in ``tier`` for what the slower of the sources hold.

        None: they are taken. Else what has to be saved before the tier has room.

        Making room may evict what a shorter boundary would have needed, so that every attempt
        looks again.
        """
        while True:
            presence = self._present()
            needs = self._tiers.requirements([presence[name] for name in sources])
            num_pages = len(self._hashes)
            reach = longest_restorable(needs, num_pages, self.boundary)
            if reach < self.boundary:
                known = longest_restorable(needs, num_pages)
                by = shortened_by(needs, known) or self._tiers.spaces[0]
                self._cut, self.boundary = self._late or by, reach
            self._pin()
            have = [presence[name] for name in sources[: sources.index(tier.tier) + 1]]
            pages = self._missing_pages(self._tiers.requirements(have))
            counts = {space: len(found) for space, found in pages.items()}
            too_many = most is not None and any(n > most[space] for space, n in counts.items())
            taken = None if too_many else tier.take(counts)
            if taken is not None:
                self._from[tier.tier], self._taken[tier.tier] = pages, taken
                return None
            if tier.refused is not None and not too_many:
                return tier.refused
            self._cut = "prefetch_host_share" if too_many else f"{tier.tier}_capacity"
            self._controller.counters.add(f"shortened.{self._cut}")
            missing = {need.name: ~need.present for need in self._tiers.requirements(have)}
            allowed = restorable_lengths(needs, num_pages)
            self.boundary = self._fitting(tier, missing, allowed, most)
            self._unpin()

    def _pin(self) -> None:
        """Keep in both tiers what the boundary needs, as far as it is there."""
        state = (self.boundary, self._here.changes)
        if state != self._pinned:
            tiers, wanted = self._tiers, self._wanted(self.boundary)
            before, self._pinned = self._pins, state
            self._pins = [Pins(tier, "restore") for tier in (tiers.device, tiers.host)]
            for pins in self._pins:
                pins.add(wanted)
            for pins in before:
                pins.release()

    def _unpin(self) -> None:
        pinned, self._pins, self._pinned = self._pins, (), None
        for pins in pinned:
            pins.release()

    def _missing_pages(self, have: Sequence[Requirement]) -> dict[str, list[int]]:
        """Space -> pages that the boundary needs and that are not among what is there."""
        missing: dict[str, list[int]] = {}
        for space, present, _ in have:
            first = self._first(space, self.boundary)
            gaps = (~present[first : self.boundary]).nonzero()[0]
            if len(gaps):
                missing[space] = (gaps + first).tolist()
        return missing

    def _fitting(
        self,
        tier: Residency,
        missing: Mapping[str, Bools],
        allowed: Bools,
        most: Mapping[str, int] | None,
    ) -> int:
        """The longest shorter boundary whose slots are free, or will be without this one's."""
        fits = allowed.copy()
        fits[self.boundary :] = False
        lengths = np.arange(len(fits))
        for space, flags in missing.items():
            own = tier.present(space, self._hashes)
            own[: self._first(space, self.boundary)] = own[self.boundary :] = False
            window = self._tiers.plan.spaces[space].window_pages
            first = 0 if window is None else np.maximum(lengths - window, 0)
            room = tier.num_free(space) + np.count_nonzero(own)
            limits = [(flags | own, room), (flags, room if most is None else most[space])]
            for needed, limit in limits:
                counted = np.concatenate(([0], np.cumsum(needed)))
                fits &= counted[lengths] - counted[first] <= limit
        return longest(fits)
