"""Keeps slots of one tier from being evicted while somebody uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from composer.residency.tier import PageEntry, Residency

Wanted = Mapping[str, Sequence[bytes]]  # index space -> page hashes


class Pins:
    """Everything that one operation or lease keeps in one tier. Used under the caches' lock.

    Args:
        residency: The tier.
        holder: Who keeps it, for reports: ``lease``, ``restore``, ``backup`` …
    """

    def __init__(self, residency: Residency, holder: str) -> None:
        self._residency, self._holder = residency, holder
        self._pages: list[PageEntry] = []
        self._trailing: list[tuple[str, list[bytes]]] = []

    def add(self, wanted: Wanted) -> None:
        """Keep those of the wanted slots that are here."""
        if not wanted:
            return
        tier = self._residency
        lists = [wanted[space] for space in tier.page_spaces if wanted.get(space)]
        hashes = lists[0] if len(lists) == 1 else dict.fromkeys(chain.from_iterable(lists))
        found = map(tier.pages.get, hashes)
        self.add_pages([page for page in found if page is not None])
        for space in tier.trailing:
            known = tier.residents[space]
            held = [page_hash for page_hash in wanted.get(space, ()) if page_hash in known]
            if held:
                tier.hold(space, held, self._holder)
                self._trailing.append((space, held))

    def add_pages(self, pages: Sequence[PageEntry]) -> None:
        """Keep pages, all of which are here."""
        if pages:
            self._residency.lock(pages, self._holder)
            self._pages += pages

    def release(self) -> None:
        """Let go of everything. Idempotent."""
        pages, self._pages = self._pages, []
        trailing, self._trailing = self._trailing, []
        if pages:
            self._residency.unlock(pages[::-1], self._holder)
        for space, held in trailing:
            self._residency.unhold(space, held, self._holder)
