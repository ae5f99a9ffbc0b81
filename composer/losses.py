"""What went on once and has to go on again, because storage lost it or never got it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from composer.held_back import HeldBack
from composer.ledger import Ledger
from composer.lookup import Tiers


class Losses:
    """Notes losses: of the host tier in the ledger, of the device tier alone here.

    Used under the caches' lock.

    Args:
        tiers: Where the slots are.
        ledger: What of the host tier is in storage.
        held_back: What of the device tier never went on, and is no loss.

    Attributes:
        again: What only the device tier has, and has to go on once more.
    """

    def __init__(self, tiers: Tiers, ledger: Ledger, held_back: HeldBack) -> None:
        self._tiers, self._ledger, self._held_back = tiers, ledger, held_back
        self.again = HeldBack(tiers.device)
        tiers.host.on_evict, tiers.device.on_evict = self._left_host, self._left_device

    def missing(self, space: str, hashes: Sequence[bytes], scope: str) -> None:
        """Storage was asked for these slots, and has them no more."""
        known = self._tiers.host.residents[space]
        self._ledger.lose(((space, one) for one in hashes if one in known), scope)
        self._only_device(space, (one for one in hashes if one not in known))

    def everything(self, scope: str | None) -> None:
        """Storage has nothing of a scope (None: of any) any more."""
        host, ledger = self._tiers.host, self._ledger
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

    def _left_host(self, space: str, page_hash: bytes) -> None:
        """The host tier gave a slot up; what storage never had may still be in the device tier."""
        if self._ledger.forget((space, page_hash)):
            self._only_device(space, [page_hash])

    def _left_device(self, space: str, page_hash: bytes) -> None:
        if space in self._tiers.device.page_spaces:
            self._held_back.forget(page_hash)
            self.again.forget(page_hash)

    def _only_device(self, space: str, hashes: Iterable[bytes]) -> None:
        device, held_back = self._tiers.device, self._held_back
        if space in device.page_spaces:
            found = (one for one in hashes if one in device.pages)
            self.again.add((one for one in found if one not in held_back.pages), ())
        elif wanted := set(hashes):
            kept = (n for n, c in device.checkpoints.items() if wanted.intersection(c.holds[space]))
            self.again.add((), (one for one in kept if one not in held_back.checkpoints))
