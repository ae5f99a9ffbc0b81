"""Host slots on their way to storage, and what is known of them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

from composer.controller import PoolTransferResult
from composer.reading.lookup import Tiers
from composer.transfer import PoolTransfer
from composer.writing.backup import Hashes
from composer.writing.ledger import Slot
from composer.writing.losses import Losses

Scopes = Mapping[str, Mapping[str, list[bytes]]]  # scope -> index space -> page hashes


class Storing:
    """Writes host slots, looks for them, and notes what became of them.

    Args:
        tiers: Where the slots are.
        losses: Knows what storage lacks.
        renew_pages: Pages before those that are written which are asked for in the same call.
    """

    def __init__(self, tiers: Tiers, losses: Losses, renew_pages: int) -> None:
        self._tiers, self._losses, self._ledger = tiers, losses, losses.ledger
        self._renew_pages = renew_pages

    def write(self, scope: str, hashes: Hashes, before: Sequence[bytes] = ()) -> None:
        """Write host slots that are pinned, and note what became of them."""
        tiers, renewed = self._tiers, before[: self._renew_pages]
        with tiers.lock:
            transfers = [self._transfer(space, found, scope) for space, found in hashes.items()]
        spaces = tiers.host.page_spaces if renewed else ()
        renew = [PoolTransfer(space, page_hashes=renewed, scope=scope) for space in spaces]
        try:
            results = tiers.controller.write_storage(transfers, renew)
        except BaseException:
            with tiers.lock:
                self._note_refused(transfers)
            raise
        with tiers.lock:
            for one, result in zip(transfers, results, strict=False):
                self._note(one, result)
            for one, result in zip(renew, results[len(transfers) :], strict=False):
                pairs = zip(renewed, result.ok.tolist(), strict=True)
                self._losses.missing(one.pool, [h for h, ok in pairs if not ok], scope)

    def prove(self) -> bool:
        """Look for written slots, each once in a while; True: storage has lost some."""
        with self._tiers.lock:
            due = self._ledger.to_ask()
        lost = False
        for scope, hashes in by_scope(due).items():
            asked = [PoolTransfer(s, page_hashes=found, scope=scope) for s, found in hashes.items()]
            results = self._tiers.controller.exists(asked)
            with self._tiers.lock:
                for one, result in zip(asked, results, strict=True):
                    for page_hash, seen in zip(one.page_hashes, result.ok.tolist(), strict=True):
                        self._ledger.asked((one.pool, page_hash), seen=seen)
                        lost |= not seen
        return lost

    def _transfer(self, space: str, hashes: Sequence[bytes], scope: str) -> PoolTransfer:
        slots, degraded = self._tiers.host.rows(space, hashes)
        return PoolTransfer(
            space, host_ids=slots, page_hashes=hashes, scope=scope, degraded=degraded
        )

    def _note(self, one: PoolTransfer, result: PoolTransferResult) -> None:
        hashes, seen = one.page_hashes, result.seen
        if not result.ok.all():
            self._ledger.refused(one.pool, compress(hashes, ~result.ok))
            hashes, seen = list(compress(hashes, result.ok)), seen[result.ok]
        self._ledger.wrote(one.pool, hashes, seen.tolist())

    def _note_refused(self, transfers: Sequence[PoolTransfer]) -> None:
        for one in transfers:
            self._ledger.refused(one.pool, one.page_hashes)


def by_scope(slots: Mapping[Slot, str]) -> Scopes:
    """Slots with their scopes, by scope and index space."""
    scopes: dict[str, dict[str, list[bytes]]] = {}
    for (space, page_hash), scope in slots.items():
        scopes.setdefault(scope, {}).setdefault(space, []).append(page_hash)
    return scopes
