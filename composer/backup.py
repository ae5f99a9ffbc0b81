"""One batch of pages and checkpoints on its way from the device to the host and to storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from composer.group import Reservation
from composer.ledger import Ledger
from composer.lookup import Tiers
from composer.pins import Pins
from composer.plan import StackPlan
from composer.residency import Checkpoint, PageEntry, Resident
from composer.transfer import PoolTransfer

Hashes = Mapping[str, Sequence[bytes]]  # index space -> page hashes
Write = Callable[[str, Hashes, Sequence[bytes]], None]  # scope, pinned slots, the chain before


@dataclass(frozen=True)
class Batch:
    """Pages and checkpoints of one chain that move together, all or none.

    Attributes:
        scope: Whose chain it is.
        pages: Pages of the chain, in prefix order.
        checkpoints: Boundaries, which keep windows and states.
        before: The chain's first pages before ``pages``; a write asks for them again.
    """

    scope: str
    pages: Sequence[PageEntry]
    checkpoints: Sequence[Checkpoint]
    before: Sequence[bytes] = ()

    def num_bytes(self, plan: StackPlan) -> int:
        """Bytes of it in the host tier, at most."""
        windows = [spaces for one in self.checkpoints for spaces in one.holds.items()]
        counts = [
            (space, len(self.pages)) for space, one in plan.spaces.items() if not one.window_pages
        ]
        counts += [(space, len(held)) for space, held in windows]
        return sum(plan.spaces[space].host_slot_bytes * count for space, count in counts)


class Backup:
    """One batch on its way: reserved in the caller's thread, moved on a worker.

    Attributes:
        num_bytes: Bytes of the host tier that it may take.
    """

    def __init__(self, tiers: Tiers, batch: Batch, ledger: Ledger, write: Write) -> None:
        self.num_bytes = batch.num_bytes(tiers.plan)
        self._copied = False
        self._tiers, self._batch, self._ledger, self._write = tiers, batch, ledger, write
        self._device, self._host = Pins(tiers.device, "backup"), Pins(tiers.host, "backup")
        self._hashes: dict[str, list[bytes]] = {}
        self._taken: Reservation = {}

    def reserve(self) -> bool:
        """Take host slots for all of the batch, or none."""
        tiers = self._tiers
        with tiers.lock:
            wanted = self._wanted()
            self._device.add(wanted)
            self._host.add(wanted)
            self._hashes = {
                space: [h for h in hashes if h not in tiers.host.residents[space]]
                for space, hashes in wanted.items()
            }
            counts = {space: len(found) for space, found in self._hashes.items() if found}
            taken = tiers.host.take(counts)
            if taken is None:
                self._release()
                return False
            self._take(taken)
            known = (tiers.device.pages, tiers.host.pages)
            lost = [p for p in self._batch.pages if not any(p.page_hash in one for one in known)]
        if lost:  # evicted from the device while they waited for room
            tiers.controller.counters.add("backups_lost_pages", len(lost))
        return True

    def run(self) -> None:
        """Copy to the host unless that was done, and write to storage."""
        try:
            self.copy()
            hashes = {space: found for space, found in self._hashes.items() if found}
            self._write(self._batch.scope, hashes, self._batch.before)
        finally:
            with self._tiers.lock:
                self._release()

    def copy(self) -> None:
        """Copy to the host, and adopt there. Gives everything back on failure."""
        if self._copied:
            return
        try:
            self._tiers.controller.backup(self._transfers())
            with self._tiers.lock:
                self._adopt()
                self._device.release()
            self._copied = True
        finally:
            if not self._copied:
                with self._tiers.lock:
                    self._release()

    def _wanted(self) -> dict[str, list[bytes]]:
        """Hashes per index space of what is still in the device tier."""
        device = self._tiers.device
        pages = [p.page_hash for p in self._batch.pages if p.page_hash in device.pages]
        wanted = {space: list(pages) for space in device.page_spaces}
        for space in device.trailing:
            known = device.residents[space]
            held = (h for c in self._batch.checkpoints for h in c.holds[space] if h in known)
            wanted[space] = list(dict.fromkeys(held))
        return wanted

    def _transfers(self) -> list[PoolTransfer]:
        with self._tiers.lock:
            device = self._tiers.device
            return [
                PoolTransfer(space, device.slots(space, self._hashes[space]), slots)
                for space, slots in self._taken.items()
            ]

    def _adopt(self) -> None:
        host, device, taken = self._tiers.host, self._tiers.device, self._take({})
        fresh = {
            space: {
                page_hash: Resident(slot, flag)
                for page_hash, slot, flag in zip(
                    self._hashes[space],
                    slots,
                    device.degraded(space, self._hashes[space]),
                    strict=True,
                )
            }
            for space, slots in taken.items()
        }
        for page in self._batch.pages:
            slots = {
                space: fresh[space][page.page_hash]
                for space in host.page_spaces
                if page.page_hash in fresh.get(space, {})
            }
            if slots:
                host.adopt_page(page, slots)
        for space in host.trailing:
            for page_hash, resident in fresh.get(space, {}).items():
                host.adopt_trailing(space, page_hash, resident)
        self._host.add(self._hashes)
        for checkpoint in self._batch.checkpoints:
            if all(h in host.residents[s] for s, held in checkpoint.holds.items() for h in held):
                host.add_checkpoint(checkpoint)
        for space, hashes in self._hashes.items():
            self._ledger.expect(((space, h) for h in hashes), self._batch.scope)

    def _take(self, slots: Reservation) -> Reservation:
        """Keep these host slots, and return those before."""
        before, self._taken = self._taken, slots
        self._ledger.num_coming += sum(map(len, slots.values())) - sum(map(len, before.values()))
        return before

    def _release(self) -> None:
        self._tiers.host.give_back(self._take({}))
        self._device.release()
        self._host.release()


class Rewrite:
    """Host slots that storage does not have, written again."""

    num_bytes = 0  # they are in the host tier already

    def __init__(
        self, tiers: Tiers, scope: str, hashes: dict[str, list[bytes]], write: Write
    ) -> None:
        self._tiers, self._scope, self._hashes, self._write = tiers, scope, hashes, write
        self._host = Pins(tiers.host, "rewrite")
        self._host.add(hashes)

    def run(self) -> None:
        try:
            self._write(self._scope, self._hashes, ())
        finally:
            with self._tiers.lock:
                self._host.release()
