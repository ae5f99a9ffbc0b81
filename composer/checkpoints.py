"""Which boundaries of a prompt are worth keeping windows and states at. Counted in pages."""

from __future__ import annotations

from collections.abc import Sequence

from composer.lookup import Tiers
from composer.residency import Residency


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


def thin_out(tiers: Tiers, page_hashes: Sequence[bytes], limit: int | None) -> int:
    """Drop, in every tier, what one chain keeps beyond ``limit`` boundaries.

    The least recently used inner ones go; the last one stays, and so do those where the chain
    branches. Used under the caches' lock.

    Returns:
        Boundaries dropped.
    """
    if limit is None:
        return 0
    both = (tiers.device, tiers.host)
    kept = [h for h in page_hashes if any(h in tier.checkpoints for tier in both)]
    inner = [h for h in kept[:-1] if all(tier.num_children(h) < 2 for tier in both)]
    inner.sort(key=lambda page_hash: [_last_use(tier, page_hash) for tier in both])
    surplus = inner[: max(len(kept) - limit, 0)]
    for page_hash in surplus:
        for tier in both:
            if page_hash in tier.checkpoints:
                tier.drop_checkpoint(page_hash)
    return len(surplus)


def _last_use(tier: Residency, page_hash: bytes) -> int:
    checkpoint = tier.checkpoints.get(page_hash)
    return checkpoint.last_use if checkpoint else 0  # what a tier gave up was used before
