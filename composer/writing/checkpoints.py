"""Which boundaries of a prompt are worth keeping windows and states at. Counted in pages."""

from __future__ import annotations

from collections.abc import Sequence

from composer.reading.lookup import Tiers
from composer.residency.tier import Residency


def worth_keeping(
    first: int, num_pages: int, step: int, branch: int, limit: int | None = None
) -> list[int]:
    """Boundaries behind ``first``: every ``step``, where the prompt leaves what is known, its end.

    Args:
        first: Pages whose boundaries are past.
        num_pages: Full pages of the prompt.
        step: Pages from one regular boundary to the next.
        branch: Pages that some tier knows: another prompt may go on there, too.
        limit: Most boundaries; None: all. The end comes first, for the prompt's continuation, then
            the branch, and then what saves most when it is reused.

    Returns:
        In ascending order.
    """
    deepest_first = range(num_pages - num_pages % step, 0, -step)
    wanted = dict.fromkeys((num_pages, branch, *deepest_first))
    found = [page for page in wanted if first < page <= num_pages]
    return sorted(found[:limit])


class Thinning:
    """Keeps the boundaries of each chain few. Used under the caches' lock.

    Args:
        tiers: Where they are.
        limit: Boundaries that a chain keeps at most; None: no limit.
    """

    def __init__(self, tiers: Tiers, limit: int | None) -> None:
        self._both, self._limit = (tiers.device, tiers.host), limit
        self._has_pages = bool(tiers.device.page_spaces)
        # without pages: boundary -> the page that continues it; None: there are several
        self._next: dict[bytes, bytes | None] = {}

    def thin_out(self, page_hashes: Sequence[bytes]) -> int:
        """Drop, in every tier, what one chain keeps beyond the limit.

        The least recently used inner ones go; the last one stays, and so do those where the chain
        branches.

        Returns:
            Boundaries dropped.
        """
        if self._limit is None:
            return 0
        kept = [at for at, h in enumerate(page_hashes) if self._is_kept(h)]
        if not self._has_pages:
            self._note_branches(page_hashes, kept)
        inner = [h for h in (page_hashes[at] for at in kept[:-1]) if not self._is_branch(h)]
        inner.sort(key=lambda page_hash: [_last_use(tier, page_hash) for tier in self._both])
        surplus = inner[: max(len(kept) - self._limit, 0)]
        for page_hash in surplus:
            for tier in self._both:
                if page_hash in tier.checkpoints:
                    tier.drop_checkpoint(page_hash)
        return len(surplus)

    def _is_kept(self, page_hash: bytes) -> bool:
        return any(page_hash in tier.checkpoints for tier in self._both)

    def _is_branch(self, page_hash: bytes) -> bool:
        if self._has_pages:
            return any(tier.num_children(page_hash) > 1 for tier in self._both)
        return self._next.get(page_hash, b"") is None

    def _note_branches(self, page_hashes: Sequence[bytes], kept: Sequence[int]) -> None:
        for at in kept:
            if at + 1 < len(page_hashes):
                first = self._next.setdefault(page_hashes[at], page_hashes[at + 1])
                if first != page_hashes[at + 1]:
                    self._next[page_hashes[at]] = None
        if len(self._next) > 64 + 2 * sum(len(tier.checkpoints) for tier in self._both):
            self._next = {h: after for h, after in self._next.items() if self._is_kept(h)}


def _last_use(tier: Residency, page_hash: bytes) -> int:
    checkpoint = tier.checkpoints.get(page_hash)
    return checkpoint.last_use if checkpoint else 0  # what a tier gave up was used before
