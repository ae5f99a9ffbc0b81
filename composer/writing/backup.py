"""One batch of pages and checkpoints on its way from the device to the host and to storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from composer.controller import HybridCacheController
from composer.group import Reservation
from composer.plan import StackPlan
from composer.reading.lookup import Tiers
from composer.record import record
from composer.residency.pins import Pins
from composer.residency.tier import Checkpoint, PageEntry, Resident
from composer.transfer import PoolTransfer
from composer.writing.ledger import Ledger

log = logging.getLogger(__name__)
Hashes = Mapping[str, Sequence[bytes]]  # index space -> page hashes
Write = Callable[[str, Hashes, Sequence[bytes]], None]  # scope, pinned slots, the chain before


@record
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


@dataclass(frozen=True)
class Route:
    """What every batch goes through.

    Attributes:
        tiers: Where it moves.
        ledger: Knows what becomes of its slots.
        write: Writes pinned host slots to storage.
        put_off: Told of a batch that could not be copied.
    """

    tiers: Tiers
    ledger: Ledger
    write: Write
    put_off: Callable[[Batch], None]


class Backup:
    """One batch on its way: reserved in the caller's thread, moved on a worker.

    Attributes:
        num_bytes: Bytes of the host tier that it may take.
    """

    def __init__(self, route: Route, batch: Batch) -> None:
        tiers = route.tiers
        self.num_bytes = batch.num_bytes(tiers.plan)
        self._copied = self._given_up = False
        self._route, self._tiers, self._batch = route, tiers, batch
        self._device, self._host = Pins(tiers.device, "backup"), Pins(tiers.host, "backup")
        self._hashes: dict[str, list[bytes]] = {}
        self._pages: list[PageEntry] = []  # that the host tier does not have
        self._taken: Reservation = {}
        self._rows: dict[str, tuple[list[int], list[bool]]] = {}  # of those in the device tier

    def reserve(self) -> bool:
        """Take host slots for all of the batch, or none."""
        with self._tiers.lock:
            try:
                reserved = self._reserve()
            except BaseException:
                self.give_up()
                raise
            lost = self._lost() if reserved else {}
        self._tiers.controller.counters.add_all(lost, "backups_lost.")
        return reserved

    def run(self) -> None:
        """Copy to the host unless that was done, and write to storage."""
        if self._given_up:
            return
        try:
            self.copy()
            hashes = {space: found for space, found in self._hashes.items() if found}
            self._route.write(self._batch.scope, hashes, self._batch.before)
        finally:
            with self._tiers.lock:
                self._release()

    def copy(self) -> None:
        """Copy to the host, and adopt there; gives up where that fails."""
        if self._copied or self._given_up:
            return
        try:
            self._tiers.controller.backup(self.transfers())
        except BaseException:
            self.give_up()
            raise
        self.adopt()

    def adopt(self) -> None:
        """The host tier takes over what was copied."""
        if self._given_up:
            return
        try:
            with self._tiers.lock:
                self._adopt()
                self._device.release()
                self._copied = True
        finally:
            if not self._copied:
                self.give_up()

    def give_up(self) -> None:
        """Give everything back: it will not be copied now."""
        with self._tiers.lock:
            self._release()
            if not self._copied:
                self._given_up = True
                self._route.put_off(self._batch)

    def transfers(self) -> list[PoolTransfer]:
        """What has to be copied."""
        with self._tiers.lock:
            return [
                PoolTransfer(space, self._rows[space][0], slots)
                for space, slots in self._taken.items()
            ]

    def _reserve(self) -> bool:
        """Pin what the device tier still has, and take host slots for what the host tier lacks."""
        device, host = self._tiers.device, self._tiers.host
        known = device.pages  # as they are now: the tier may have lost them and got them again
        now = (one if one.is_here else known.get(one.page_hash) for one in self._batch.pages)
        pages = [page for page in now if page is not None]
        trailing = self._trailing()
        self._device.add_pages(pages)
        self._device.add(trailing)
        self._pages = [page for page in pages if page.page_hash not in host.pages]
        hashes = [page.page_hash for page in self._pages]
        if len(hashes) < len(pages):
            there = (host.pages.get(page.page_hash) for page in pages)
            self._host.add_pages([page for page in there if page is not None])
        self._host.add(trailing)
        self._hashes = dict.fromkeys(device.page_spaces, hashes)
        for space, held in trailing.items():
            self._hashes[space] = [one for one in held if one not in host.residents[space]]
        taken = host.take({space: len(found) for space, found in self._hashes.items() if found})
        if taken is None:
            self._release()
            return False
        self._take(taken)
        self._rows = {space: device.rows(space, self._hashes[space]) for space in taken}
        return True

    def _lost(self) -> dict[str, int]:
        """What the tiers have given up while it waited for room."""
        device, host, batch = self._tiers.device, self._tiers.host, self._batch
        gone = (page.page_hash for page in batch.pages if not page.is_here)
        pages = [page_hash for page_hash in gone if page_hash not in device.pages]
        kept = [c.page_hash for c in batch.checkpoints if c.page_hash not in device.checkpoints]
        lost = {
            "pages": sum(page_hash not in host.pages for page_hash in pages),
            "boundaries": sum(page_hash not in host.checkpoints for page_hash in kept),
        }
        return {kind: number for kind, number in lost.items() if number}

    def _trailing(self) -> dict[str, list[bytes]]:
        """Space -> what the boundaries keep there and is still in the device tier."""
        wanted = {}
        for space in self._tiers.device.trailing:
            known = self._tiers.device.residents[space]
            held = (h for c in self._batch.checkpoints for h in c.holds[space] if h in known)
            wanted[space] = list(dict.fromkeys(held))
        return wanted

    def _adopt(self) -> None:
        host, taken = self._tiers.host, self._take({})
        degraded = {space: self._rows[space][1] for space in taken}
        if self._pages:
            chain = [(page.page_hash, page.parent) for page in self._pages]
            self._host.add_pages(host.adopt_pages(self._batch.scope, chain, taken, degraded))
        trailing = {space: self._hashes[space] for space in host.trailing if space in taken}
        for space, hashes in trailing.items():
            for page_hash, slot, flag in zip(hashes, taken[space], degraded[space], strict=True):
                host.adopt_trailing(space, page_hash, Resident(slot, flag))
        self._host.add(trailing)
        for checkpoint in self._batch.checkpoints:
            if all(h in host.residents[s] for s, held in checkpoint.holds.items() for h in held):
                host.add_checkpoint(checkpoint)
        for space, hashes in self._hashes.items():
            self._route.ledger.expect(space, hashes, self._batch.scope)

    def _take(self, slots: Reservation) -> Reservation:
        """Keep these host slots, and return those before."""
        before, self._taken = self._taken, slots
        more = sum(map(len, slots.values())) - sum(map(len, before.values()))
        self._route.ledger.num_coming += more
        return before

    def _release(self) -> None:
        self._tiers.host.give_back(self._take({}))
        self._device.release()
        self._host.release()


class Rewrite:
    """Host slots that storage does not have, written again; made under the caches' lock."""

    num_bytes = 0  # they are in the host tier already

    def __init__(self, route: Route, scope: str, hashes: dict[str, list[bytes]]) -> None:
        self._route, self._scope, self._hashes = route, scope, hashes
        self._host = Pins(route.tiers.host, "rewrite")
        self._host.add(hashes)

    def run(self) -> None:
        """Write to storage."""
        try:
            self._route.write(self._scope, self._hashes, ())
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Let the slots go."""
        with self._route.tiers.lock:
            self._host.release()


def copy_together(controller: HybridCacheController, backups: Sequence[Backup]) -> bool:
    """Copy the slots of several reserved batches at once, in one call; whether that went well.

    Each has to ``adopt`` its own afterwards. Where it went wrong nothing has changed: one of them
    is at fault, and each has to be copied by itself.
    """
    slots: dict[str, tuple[list[int], list[int]]] = {}
    for backup in backups:
        for one in backup.transfers():
            device_ids, host_ids = slots.setdefault(one.pool, ([], []))
            device_ids += one.device_ids
            host_ids += one.host_ids
    try:
        controller.backup([PoolTransfer(space, *ids) for space, ids in slots.items()])
    except Exception as error:
        log.warning("a merged copy failed: %s: %s", type(error).__name__, error)
        controller.counters.add("backups_unmerged", len(backups))
        return False
    controller.counters.add("backups_merged", len(backups))
    return True
