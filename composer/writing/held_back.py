"""Pages and boundaries of the device tier that have still to go on to the host."""

from __future__ import annotations

from collections.abc import Iterable

from composer.residency.tier import Checkpoint, PageEntry, Residency
from composer.writing.backup import Batch


class HeldBack:
    """What is held back, with the hits it has had. Used under the caches' lock.

    Attributes:
        pages: Page hash -> hits.
        checkpoints: Hash of the last page before the boundary -> hits.
    """

    def __init__(self, device: Residency) -> None:
        self._device = device
        self.pages: dict[bytes, int] = {}
        self.checkpoints: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.pages) + len(self.checkpoints)

    def __contains__(self, entry: PageEntry | Checkpoint) -> bool:
        known = self.checkpoints if isinstance(entry, Checkpoint) else self.pages
        return entry.page_hash in known

    def add(self, pages: Iterable[bytes], checkpoints: Iterable[bytes]) -> None:
        """Hold these back, as far as they are still here, without a hit."""
        device = self._device
        for page_hash in pages:
            if page_hash in device.pages:
                self.pages.setdefault(page_hash, 0)
        for page_hash in checkpoints:
            if page_hash in device.checkpoints:
                self.checkpoints.setdefault(page_hash, 0)

    def forget(self, page_hashes: Iterable[bytes]) -> int:
        """The device tier gave pages up; how many of them were held back."""
        if not self.pages:
            return 0
        return sum(self.pages.pop(page_hash, None) is not None for page_hash in page_hashes)

    def forget_checkpoint(self, page_hash: bytes) -> bool:
        """The device tier gave a boundary up; whether it was held back."""
        return self.checkpoints.pop(page_hash, None) is not None

    def take(self, page_hash: bytes, least_hits: int = 0) -> Batch | None:
        """A page with all of its chain that is held back, and the boundaries hit often enough.

        To save a page is to save its ancestors: without them nobody would ever find it.
        """
        chain = self._chain(page_hash)
        hashes = [page.page_hash for page in chain] or [page_hash]
        pages = [page for page in chain if self.pages.pop(page.page_hash, None) is not None]
        at = [one for one in hashes if self.checkpoints.get(one, -1) >= least_hits]
        for one in at:
            del self.checkpoints[one]
        found = [self._device.checkpoints[one] for one in at]
        if not pages and not found:
            return None
        first = hashes.index(pages[0].page_hash) if pages else len(hashes)
        scope = pages[0].scope if pages else found[0].scope
        return Batch(scope, pages, found, hashes[:first] if chain else ())

    def take_all(self) -> list[Batch]:
        """Everything, in batches of one chain each."""
        batches = []
        while self.pages:
            page_hash = next(reversed(self.pages))  # the end of a chain came after its start
            batches.append(self.take(page_hash))
            self.pages.pop(page_hash, None)
        while self.checkpoints:
            batches.append(self.take(next(reversed(self.checkpoints))))
        return [batch for batch in batches if batch is not None]

    def _chain(self, page_hash: bytes) -> list[PageEntry]:
        """Pages up to this one, as far as they are in the device tier, in prefix order."""
        chain, page = [], self._device.pages.get(page_hash)
        while page is not None:
            chain.append(page)
            page = page.above
        return chain[::-1]
