"""Brings a matched prefix into the device tier: storage -> host -> device.

What was actually read decides: after each step the boundary is asked again, over what is now
verifiably here. A tier without room shortens the prefix to the longest boundary that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from composer.boundary import Bools, longest, restorable_lengths, shortened_by
from composer.group import Reservation
from composer.lease import Lease
from composer.lookup import Lookup, Match, Tiers
from composer.pins import Pins
from composer.residency import Checkpoint, PageEntry, Residency, Resident
from composer.transfer import PoolTransfer


class Restore:
    """Restores matches, one ``_Operation`` each."""

    def __init__(self, tiers: Tiers, lookup: Lookup) -> None:
        self._tiers, self._lookup = tiers, lookup

    def restore(self, match: Match) -> Lease:
        """Bring the prefix into the device tier and keep it there.

        Returns:
            A lease whose boundary may be shorter than the match's, down to nothing.
        """
        operation = _Operation(self._tiers, match)
        try:
            operation.look_again(self._lookup)
            operation.reserve_host()
            operation.prefetch()
            operation.reserve_device()
            operation.load_back()
            return operation.lease(self._lookup)
        finally:
            operation.close()


class _Operation:
    """One restore.

    Attributes:
        boundary: Pages that are still promised; shrinks from step to step.
    """

    def __init__(self, tiers: Tiers, match: Match) -> None:
        self._tiers, self._match, self._prompt = tiers, match, match.prompt
        self._controller = tiers.controller
        self.boundary = match.num_pages
        self._hashes = match.prompt.hashes[: match.num_pages]
        self._stored = {s: flags[: match.num_pages] for s, flags in match.stored.items()}
        self._pins = {"device": Pins(tiers.device), "host": Pins(tiers.host)}
        self._cut: str | None = None
        self._at_start: dict[str, dict[str, Bools]] = {}
        self._from: dict[str, dict[str, list[int]]] = {"host": {}, "device": {}}  # pages to fetch
        self._taken: dict[str, Reservation] = {"host": {}, "device": {}}

    def look_again(self, lookup: Lookup) -> None:
        """Ask storage for what has been evicted from the tiers above it since the match."""
        with self._tiers.lock:
            now = self._present()
        needs = self._tiers.requirements(now.values())
        if longest(restorable_lengths(needs, len(self._hashes)), self.boundary) < self.boundary:
            here = self._tiers.requirements([now["device"], now["host"]])
            self._stored = lookup.ask_storage(self._prompt, here)

    def reserve_host(self) -> None:
        """Take host slots for what only storage holds."""
        with self._tiers.lock:
            self._at_start = self._present()
            self._reserve(self._tiers.host, sources=("device", "host", "storage"))

    def prefetch(self) -> None:
        """Read what only storage holds, and adopt what proved right."""
        taken = self._taken["host"]
        if not taken:
            return
        pages = self._from["host"]
        results = self._controller.prefetch(
            [
                PoolTransfer(
                    space,
                    host_ids=slots,
                    page_hashes=[self._hashes[page] for page in pages[space]],
                    scope=self._prompt.scope,
                )
                for space, slots in taken.items()
            ]
        )
        with self._tiers.lock:
            slots: dict[str, dict[int, Resident]] = {}
            for result in results:
                flags = result.degraded.tolist()
                triples = zip(pages[result.pool], taken[result.pool], flags, strict=True)
                residents = {page: Resident(slot, flag) for page, slot, flag in triples}
                wrong = [p for p, ok in zip(pages[result.pool], result.ok, strict=True) if not ok]
                for page in wrong:
                    self._tiers.host.give_back({result.pool: [residents.pop(page).slot]})
                slots[result.pool] = residents
            self._taken["host"] = {}
            self._adopt(self._tiers.host, slots)
            self._checkpoint(self._tiers.host)  # what was read stays, whatever the device can hold

    def reserve_device(self) -> None:
        """Take device slots for what is only in host memory."""
        with self._tiers.lock:
            self._reserve(self._tiers.device, sources=("device", "host"))

    def load_back(self) -> None:
        """Copy host slots to the device, and adopt them there."""
        taken = self._taken["device"]
        if not taken:
            return
        pages = self._from["device"]
        hashes = {space: [self._hashes[page] for page in pages[space]] for space in taken}
        with self._tiers.lock:
            transfers = [
                PoolTransfer(space, slots, self._tiers.host.slots(space, hashes[space]))
                for space, slots in taken.items()
            ]
            degraded = {s: self._tiers.host.degraded(s, hashes[s]) for s in taken}
        self._controller.load_back(transfers)
        with self._tiers.lock:
            slots = {
                space: {
                    page: Resident(slot, flag)
                    for page, slot, flag in zip(pages[space], ids, degraded[space], strict=True)
                }
                for space, ids in taken.items()
            }
            self._taken["device"] = {}
            self._adopt(self._tiers.device, slots)

    def lease(self, lookup: Lookup) -> Lease:
        """What the caller gets; its own pins outlive the operation's."""
        tiers, boundary = self._tiers, self.boundary
        with tiers.lock:
            self._checkpoint(tiers.host)
            self._checkpoint(tiers.device)
            pins = Pins(tiers.device)
            wanted = self._wanted(boundary)
            pins.add(wanted)
            for tier in (tiers.device, tiers.host):
                tier.touch(self._hashes[:boundary])
            slots = {space: tiers.device.slots(space, hashes) for space, hashes in wanted.items()}
            degraded = self._degraded(wanted)
        spaces = tiers.plan.spaces
        lease = Lease(
            num_pages=boundary,
            num_tokens=boundary * tiers.plan.page_size,
            pages={s: ids for s, ids in slots.items() if not spaces[s].is_state},
            states={s: ids[-1] for s, ids in slots.items() if spaces[s].is_state and ids},
            hit_tokens=lookup.count_tokens(self._at_start, boundary),
            page_tiers=lookup.page_tiers(self._at_start, boundary),
            shortened_by=self._cut or self._match.shortened_by,
            degraded=degraded,
            _release=lambda: self._unpin(pins),
        )
        self._controller.counters.add_all(lease.hit_tokens, "hit_tokens.")
        return lease

    def close(self) -> None:
        """Give back what was not adopted, and let go."""
        with self._tiers.lock:
            self._tiers.host.give_back(self._taken["host"])
            self._tiers.device.give_back(self._taken["device"])
            for pins in self._pins.values():
                pins.release()

    def _present(self) -> dict[str, dict[str, Bools]]:
        tiers = self._tiers
        here = {tier: tiers.present(tier, self._hashes) for tier in ("device", "host")}
        return {**here, "storage": self._stored}

    def _unpin(self, pins: Pins) -> None:
        with self._tiers.lock:
            pins.release()

    def _wanted(self, boundary: int) -> dict[str, list[bytes]]:
        return {
            space: self._hashes[self._first(space, boundary) : boundary]
            for space in self._tiers.spaces
        }

    def _first(self, space: str, boundary: int) -> int:
        window = self._tiers.plan.spaces[space].window_pages
        return 0 if window is None else max(boundary - window, 0)

    def _reserve(self, tier: Residency, sources: Sequence[str]) -> None:
        """Take slots in ``tier`` for what the slower of the sources hold.

        Making room may evict what a shorter boundary would have needed, so that every attempt
        looks again.
        """
        while True:
            presence = self._present()
            needs = self._tiers.requirements([presence[name] for name in sources])
            allowed = restorable_lengths(needs, len(self._hashes))
            if longest(allowed, self.boundary) < self.boundary:
                self._cut = shortened_by(needs, longest(allowed)) or self._tiers.spaces[0]
                self.boundary = longest(allowed, self.boundary)
            wanted = self._wanted(self.boundary)
            for pins in self._pins.values():
                pins.add(wanted)
            have = [presence[name] for name in sources[: sources.index(tier.tier) + 1]]
            missing = {s: ~np.logical_or.reduce([one[s] for one in have]) for s in wanted}
            pages = {space: self._missing_pages(space, flags) for space, flags in missing.items()}
            taken = tier.take({space: len(found) for space, found in pages.items() if found})
            if taken is not None:
                self._from[tier.tier], self._taken[tier.tier] = pages, taken
                return
            self._cut = f"{tier.tier}_capacity"
            self._controller.counters.add(f"shortened.{self._cut}")
            self.boundary = self._fitting(tier, missing, allowed)
            for pins in self._pins.values():
                pins.release()

    def _missing_pages(self, space: str, missing: Bools) -> list[int]:
        first = self._first(space, self.boundary)
        found: list[int] = (np.flatnonzero(missing[first : self.boundary]) + first).tolist()
        return found

    def _fitting(self, tier: Residency, missing: Mapping[str, Bools], allowed: Bools) -> int:
        """The longest shorter boundary whose slots are free, or will be without this one's."""
        fits = allowed.copy()
        fits[self.boundary :] = False
        lengths = np.arange(len(fits))
        for space, flags in missing.items():
            own = tier.present(space, self._hashes)
            own[: self._first(space, self.boundary)] = own[self.boundary :] = False
            counted = np.concatenate(([0], np.cumsum(flags | own)))
            window = self._tiers.plan.spaces[space].window_pages
            first = 0 if window is None else np.maximum(lengths - window, 0)
            room = tier.num_free(space) + np.count_nonzero(own)
            fits &= counted[lengths] - counted[first] <= room
        return longest(fits)

    def _adopt(self, tier: Residency, slots: Mapping[str, dict[int, Resident]]) -> None:
        """Take slots over: pages as far as they continue the prefix in all spaces."""
        prompt, intact = self._prompt, True
        asked = self._from[tier.tier]
        for page in sorted({p for s in tier.page_spaces for p in asked.get(s, ())}):
            own = {s: slots[s][page] for s in tier.page_spaces if page in slots.get(s, {})}
            intact = intact and len(own) == len(tier.page_spaces)
            if intact:
                entry = PageEntry(prompt.hashes[page], prompt.parent(page), prompt.scope)
                tier.adopt_page(entry, own)
            else:
                tier.give_back({space: [one.slot] for space, one in own.items()})
        for space in tier.trailing:
            for page, resident in slots.get(space, {}).items():
                tier.adopt_trailing(space, prompt.hashes[page], resident)
        adopted = {
            space: [prompt.hashes[page] for page in sorted(slots.get(space, {}))]
            for space in (*tier.page_spaces, *tier.trailing)
        }
        self._pins[tier.tier].add(adopted)

    def _checkpoint(self, tier: Residency) -> None:
        """Let the boundary keep what trails, where this tier holds all of it."""
        wanted = self._wanted(self.boundary)
        holds = {space: tuple(wanted[space]) for space in tier.trailing}
        if not self.boundary or not holds:
            return
        if all(tier.present(space, held).all() for space, held in holds.items()):
            page_hash = self._hashes[self.boundary - 1]
            tier.add_checkpoint(Checkpoint(page_hash, self._prompt.scope, holds))

    def _degraded(self, wanted: Mapping[str, list[bytes]]) -> tuple[str, ...]:
        names = []
        for space, hashes in wanted.items():
            optional = [a for a in self._tiers.plan.spaces[space].arenas if not a.required]
            if optional and any(self._tiers.device.degraded(space, hashes)):
                names += [pool.name for arena in optional for pool in arena.pools]
        return tuple(names)
