"""What has to go on once more: storage lost it, or it never got there."""

from __future__ import annotations

from collections.abc import Sequence

from composer.reading.lookup import Tiers
from composer.writing.backup import Batch
from composer.writing.held_back import HeldBack
from composer.writing.ledger import Ledger


class Losses:
    """Notes losses: of the host tier in the ledger, of the device tier alone here.

    Used under the caches' lock.

    Args:
        tiers: Where the slots are.
        ledger: What of the host tier is in storage.
        held_back: What of the device tier never went on, and is no loss.

    Attributes:
        ledger: As given.
        again: What only the device tier has, and has to go on once more.
    """

    def __init__(self, tiers: Tiers, ledger: Ledger, held_back: HeldBack) -> None:
        self._tiers, self.ledger, self._held_back = tiers, ledger, held_back
        self.again = HeldBack(tiers.device)
        tiers.host.on_evict, tiers.device.on_evict = self._left_host, self._left_device
        tiers.device.on_drop = self._dropped

    def missing(self, space: str, hashes: Sequence[bytes], scope: str) -> None:
        """Storage was asked for these slots, and has them no more."""
        known = self._tiers.host.residents[space]
        self.ledger.lose(((space, one) for one in hashes if one in known), scope)
        self._only_device(space, [one for one in hashes if one not in known])

    def everything(self, scope: str | None) -> None:
        """Storage has nothing of a scope (None: of any) any more."""
        host, ledger = self._tiers.host, self.ledger
        for page in host.pages.values():
            if scope in (None, page.scope):
                slots = ((space, page.page_hash) for space in host.page_spaces)
                ledger.lose(slots, page.scope)
        for one in host.checkpoints.values():
            if scope in (None, one.scope):
                held = ((space, h) for space, hashes in one.holds.items() for h in hashes)
                ledger.lose(held, one.scope)
        self.again.add(*self._never_copied(scope))

    def _never_copied(self, scope: str | None) -> tuple[list[bytes], list[bytes]]:
        device, host, held_back = self._tiers.device, self._tiers.host, self._held_back
        pages = [page for name, page in device.pages.items() if name not in host.pages]
        kept = [one for name, one in device.checkpoints.items() if name not in host.checkpoints]
        return (
            [p.page_hash for p in pages if p not in held_back and scope in (None, p.scope)],
            [c.page_hash for c in kept if c not in held_back and scope in (None, c.scope)],
        )

    def put_off(self, batch: Batch) -> None:
        """A batch could not be copied."""
        pages, kept = batch.pages, batch.checkpoints
        self.again.add((one.page_hash for one in pages), (one.page_hash for one in kept))

    def take_again(self) -> list[Batch]:
        """What has to go on once more, in batches of one chain each."""
        return self.again.take_all()

    def _left_host(self, space: str, page_hashes: Sequence[bytes]) -> None:
        """The host tier gave slots up; what storage never had may still be in the device tier."""
        for page_hash in self.ledger.forget(space, page_hashes):
            if not self._only_device(space, [page_hash]):
                self.ledger.num_lost += 1

    def _left_device(self, space: str, page_hashes: Sequence[bytes]) -> None:
        if space in self._tiers.device.page_spaces:
            self._held_back.forget(page_hashes)
            self._count("pages", self.again.forget(page_hashes))

    def _dropped(self, page_hash: bytes) -> None:
        self._held_back.forget_checkpoint(page_hash)
        self._count("boundaries", self.again.forget_checkpoint(page_hash))

    def _only_device(self, space: str, hashes: Sequence[bytes]) -> bool:
        """Send these slots on once more; False: the device tier does not have them either."""
        device, held_back = self._tiers.device, self._held_back
        found = [one for one in hashes if one in device.residents[space]]
        if not found:
            return False
        if space in device.page_spaces:
            self.again.add((one for one in found if one not in held_back.pages), ())
            return True
        slots = set(found)
        kept = [n for n, c in device.checkpoints.items() if slots.intersection(c.holds[space])]
        self.again.add((), (one for one in kept if one not in held_back.checkpoints))
        return bool(kept)

    def _count(self, kind: str, lost: int) -> None:
        if lost:
            self._tiers.controller.counters.add(f"backups_lost.{kind}", lost)
