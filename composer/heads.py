"""The head of a chain that is hot above storage, which storage might age out meanwhile.

Without the head the rest of a chain is lost to everybody else, and to this process after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from composer.lookup import Tiers
from composer.transfer import PoolTransfer

MOST_KNOWN = 4096


class Heads:
    """Says when the head of a chain has to be looked for, and what of it is gone.

    Args:
        tiers: Where the chains are.
        num_pages: Length of a head.
        every_s: How often at most a head is looked for; first so long after its first hit.
    """

    def __init__(
        self,
        tiers: Tiers,
        *,
        num_pages: int,
        every_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._tiers, self._num_pages = tiers, num_pages
        self._every_s, self._clock = every_s, clock
        self._asked_at: dict[bytes, float] = {}  # last page of a head, the oldest first

    def due(self, hashes: Sequence[bytes]) -> list[bytes]:
        """The head of a prefix that was hit, where it has to be looked for now; else nothing."""
        head = list(hashes[: self._num_pages])
        if not head or self._tiers.controller.backend is None:
            return []
        now = self._clock()
        asked_at = self._asked_at.get(head[-1])
        if asked_at is None or now - asked_at >= self._every_s:
            self._asked_at.pop(head[-1], None)
            self._asked_at[head[-1]] = now
        if len(self._asked_at) > MOST_KNOWN:
            del self._asked_at[next(iter(self._asked_at))]
        if asked_at is None:  # it was just written, or read
            asked_at = now
        return head if now - asked_at >= self._every_s else []

    def missing(self, scope: str, head: Sequence[bytes]) -> dict[str, list[bytes]]:
        """What storage lacks: pages, and the longest boundary of the head that is kept here."""
        asked = [
            PoolTransfer(space, page_hashes=hashes, scope=scope)
            for space, hashes in self._wanted(head).items()
        ]
        missing = {}
        for one, answer in zip(asked, self._tiers.controller.exists(asked), strict=True):
            pairs = zip(one.page_hashes, answer.ok.tolist(), strict=True)
            missing[one.pool] = [page_hash for page_hash, ok in pairs if not ok]
        return missing

    def _wanted(self, head: Sequence[bytes]) -> Mapping[str, Sequence[bytes]]:
        tiers = self._tiers
        with tiers.lock:
            wanted: dict[str, Sequence[bytes]] = dict.fromkeys(tiers.host.page_spaces, head)
            for page_hash in reversed(head):
                for tier in (tiers.host, tiers.device):
                    if page_hash in tier.checkpoints:
                        return {**wanted, **tier.checkpoints[page_hash].holds}
        return wanted
