"""The last part of a restore: slots that are taken in the device tier, filled and adopted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import compress

import numpy as np

from composer.boundary import Bools
from composer.group import Reservation
from composer.reading.load_back import Step
from composer.reading.lookup import Prompt, Tiers
from composer.record import record
from composer.residency.pins import Pins
from composer.residency.tier import Checkpoint, Residency, Resident
from composer.transfer import PoolTransfer

Wanted = Mapping[str, list[bytes]]  # index space -> page hashes


class Held:
    """What a lease keeps in the device tier: pins, and slots that only it has."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers, self._pins = tiers, Pins(tiers.device, "lease")
        self._own: Reservation = {}
        self._released = False

    def keep(self, wanted: Wanted, own: Reservation) -> None:
        """Pin what is wanted, and own some slots; used under the caches' lock.

        After ``release`` nothing is kept.
        """
        if self._released:
            self._tiers.device.give_back(own)
        else:
            self._pins.add(wanted)
            self._own = own

    def release(self) -> None:
        """Let go of everything, once."""
        self._tiers.controller.transfer.fence()  # what the caller's stream still reads there
        with self._tiers.lock:
            own, self._own, self._released = self._own, {}, True
            self._pins.release()
            self._tiers.device.give_back(own)


class Landing:
    """Device slots of one restore on the way from host slots.

    It owns the slots and the pins that it is given until ``end``.
    """

    def __init__(
        self,
        tiers: Tiers,
        prompt: Prompt,
        wanted: Wanted,
        pages: Mapping[str, list[int]],
        taken: Reservation,
        pins: Sequence[Pins],
    ) -> None:
        """``pages``: of the prompt, those that go to the ``taken`` slots; ``wanted``: all of it."""
        self._tiers, self._prompt, self._wanted = tiers, prompt, wanted
        self._pages, self._taken, self._pins = pages, taken, pins
        self._coming = {s: [prompt.hashes[page] for page in pages[s]] for s in taken}
        self._held, self._ended = Held(tiers), False

    @property
    def held(self) -> Held:
        """What the lease keeps, from ``end`` on."""
        return self._held

    def steps(self, *, by_layer: bool) -> list[Step]:
        """How host slots get to the device: all at once, or each layer by itself."""
        if not self._taken:
            return []
        tiers, controller = self._tiers, self._tiers.controller
        with tiers.lock:
            transfers = [
                PoolTransfer(space, slots, tiers.host.slots(space, self._coming[space]))
                for space, slots in self._taken.items()
            ]
        controller.transfer.fence()  # what the caller's stream still does with these slots
        if not by_layer:
            return [Step(tiers.layers, partial(controller.load_back, transfers))]
        load = controller.transfer.load_by_layer(transfers)
        each = [Step([layer], partial(load.copy, layer)) for layer in load.layers]
        return [*each, Step([], load.end)]

    def slots(self) -> dict[str, list[int]]:
        """Device slots of all that is wanted, there already or coming. Under the caches' lock."""
        device, found = self._tiers.device, {}
        for space, hashes in self._wanted.items():
            if space not in self._coming:
                found[space] = device.slots(space, hashes)
                continue
            if len(self._coming[space]) == len(hashes):
                found[space] = list(self._taken[space])
                continue
            coming = dict(zip(self._coming[space], self._taken[space], strict=True))
            here = iter(device.slots(space, [one for one in hashes if one not in coming]))
            found[space] = [coming[one] if one in coming else next(here) for one in hashes]
        return found

    def degraded(self) -> tuple[str, ...]:
        """Optional pools that some wanted page lacks. Under the caches' lock."""
        tiers, names = self._tiers, []
        for space, optional in tiers.optional.items():
            hashes, coming = self._wanted[space], set(self._coming.get(space, ()))
            here = [page_hash for page_hash in hashes if page_hash not in coming]
            if any(tiers.device.degraded(space, here) + tiers.host.degraded(space, coming)):
                names += optional
        return tuple(names)

    def end(self, error: BaseException | None) -> None:
        """Adopt the slots (no error) or give them back, and let go. Once without an error."""
        if error is not None:
            self._held.release()
        with self._tiers.lock:
            try:
                if error is None and not self._ended:
                    self._land()
                self._ended = True
            finally:
                taken, self._taken = self._taken, {}
                self._tiers.device.give_back(taken)
                for pins in self._pins:
                    pins.release()

    def _land(self) -> None:
        """Take over what was loaded. What another brought meanwhile stays the lease's own."""
        tiers, device = self._tiers, self._tiers.device
        arrived: dict[str, Arrived] = {}
        own: Reservation = {}
        taken, self._taken = self._taken, {}
        for space, ids in taken.items():
            coming = self._coming[space]
            one = Arrived(self._pages[space], ids, tiers.host.degraded(space, coming))
            known = device.present(space, coming)
            arrived[space], others = one.split(~known) if known.any() else (one, [])
            own[space] = others
        if arrived:
            adopt(device, self._prompt, arrived, self._pins[0])
        add_checkpoint(device, self._prompt, self._wanted)
        self._held.keep(self._wanted, own)


@record
class Arrived:
    """Slots of one index space with what a prompt's pages hold there.

    Attributes:
        pages: Pages of the prompt, in order.
        slots: The slot of each.
        degraded: Of each, whether its optional pools hold nothing.
    """

    pages: Sequence[int]
    slots: Sequence[int]
    degraded: Sequence[bool]

    def split(self, chosen: Bools) -> tuple[Arrived, list[int]]:
        """Those that are chosen, and the slots of the others."""
        flags, others = chosen.tolist(), (~chosen).tolist()
        found = Arrived(
            list(compress(self.pages, flags)),
            list(compress(self.slots, flags)),
            list(compress(self.degraded, flags)),
        )
        return found, list(compress(self.slots, others))


def adopt(
    tier: Residency,
    prompt: Prompt,
    arrived: Mapping[str, Arrived],
    pins: Pins,
    failed: Collection[int] = (),
) -> None:
    """Take slots over and pin them: pages as far as they continue the prefix in all spaces.

    Args:
        tier: Where the slots are.
        prompt: Whose pages they hold.
        arrived: Index space -> its slots.
        pins: Of the same tier.
        failed: Pages that should be among them, and are not, in some space that keeps every page.
    """
    hashes = prompt.hashes
    paged = _whole(tier, arrived, min(failed, default=len(hashes)))
    pages = next(iter(paged.values())).pages if paged else ()
    if pages:
        found = tier.adopt_pages(
            prompt.scope,
            prompt.links(pages),
            {space: one.slots for space, one in paged.items()},
            {space: one.degraded for space, one in paged.items()},
        )
        pins.add_pages(found)
    coming: dict[str, list[bytes]] = {}
    for space in tier.trailing:
        if space in arrived:
            one = arrived[space]
            coming[space] = [hashes[page] for page in one.pages]
            for page_hash, slot, flag in zip(coming[space], one.slots, one.degraded, strict=True):
                tier.adopt_trailing(space, page_hash, Resident(slot, flag))
    pins.add(coming)


def _whole(tier: Residency, arrived: Mapping[str, Arrived], end: int) -> dict[str, Arrived]:
    """Pages before ``end`` that arrived in every space that keeps every page; others go back."""
    paged = {space: arrived[space] for space in tier.page_spaces if space in arrived}
    lists = [one.pages for one in paged.values()]
    common: set[int] = set()
    if lists and len(lists) == len(tier.page_spaces):
        if all(pages and pages[-1] < end and pages == lists[0] for pages in lists):
            return paged  # as it mostly is
        common = set.intersection(*map(set, lists))
    for space, one in paged.items():
        chosen = np.array([page < end and page in common for page in one.pages], np.bool_)
        if not chosen.all():
            paged[space], others = one.split(chosen)
            tier.give_back({space: others})
    return paged


def add_checkpoint(tier: Residency, prompt: Prompt, wanted: Wanted) -> None:
    """Let a boundary keep what trails, where this tier holds all of what is ``wanted`` there."""
    if not tier.trailing:
        return
    holds = {space: tuple(wanted[space]) for space in tier.trailing}
    held = [hashes for hashes in holds.values() if hashes]
    if held and all(tier.present(space, hashes).all() for space, hashes in holds.items()):
        tier.add_checkpoint(Checkpoint(held[0][-1], prompt.scope, holds))
