"""The head of a chain that is hot above storage, which storage might age out meanwhile.

Without the head the rest of a chain is lost to everybody else, and to this process after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from composer.reading.lookup import Tiers
from composer.transfer import PoolTransfer

MOST_KNOWN = 4096
MOST_GUARDED = 16


@dataclass(slots=True, eq=False)
class Head:
    """First pages of a chain that was hit.

    Attributes:
        scope: Whose chain it is.
        hashes: The pages, in prefix order.
        asked_at: When it was last looked for, or seen first.
        is_asked: Whether somebody is looking for it.
    """

    scope: str
    hashes: list[bytes]
    asked_at: float
    is_asked: bool = False


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
        self._known: dict[bytes, Head] = {}  # by its last page, the least recently hit first

    def due(self, scope: str, hashes: Sequence[bytes]) -> Head | None:
        """The head of a prefix that was hit, where it has to be looked for now."""
        last = min(self._num_pages, len(hashes)) - 1
        if last < 0 or self._tiers.controller.backend is None:
            return None
        now = self._clock()
        head = self._known.pop(hashes[last], None)
        if head is None:  # it was just written, or read
            head = Head(scope, list(hashes[: last + 1]), now)
        self._known[hashes[last]] = head
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if head.is_asked or now - head.asked_at < self._every_s:
            return None
        head.asked_at, head.is_asked = now, True
        return head

    def hottest(self) -> list[Head]:
        """A few heads that were hit last, the very last at the end."""
        return list(islice(reversed(self._known.values()), MOST_GUARDED))[::-1]

    def missing(self, head: Head) -> dict[str, list[bytes]]:
        """What storage lacks: pages, and the longest boundary of the head that is kept here."""
        asked = [
            PoolTransfer(space, page_hashes=hashes, scope=head.scope)
            for space, hashes in self._wanted(head.hashes).items()
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
