"""Which pages a boundary can use: those at or before a checkpoint, whatever tier holds either."""

from __future__ import annotations

from collections.abc import Callable, Iterable

LEAST_BEHIND = 1024  # remembered at least, before what is useless is forgotten
NOWHERE = b""  # in place of a page that no tier has


class Reach:
    """Follows the pages and checkpoints of all tiers together.

    A page is useful while there is a checkpoint at it, or a useful page that continues it. A change
    travels up a chain only as far as it changes anything, so that it costs O(1) per page in the
    long run. Used under the caches' lock.
    """

    def __init__(self) -> None:
        self._parents: dict[bytes, bytes] = {}
        self._copies: dict[bytes, int] = {}  # tiers that hold the page
        self._uses: dict[bytes, int] = {}  # checkpoints at it, and useful pages that continue it
        self._stored: set[bytes] = set()  # left the host tier, and are in storage
        self._behind: dict[bytes, set[bytes]] = {}  # page here -> useful ones that left behind it
        self._num_behind, self._most_behind = 0, LEAST_BEHIND
        self._listeners: list[tuple[Callable[[bytes], None], Callable[[bytes], None]]] = []

    def listen(self, useless: Callable[[bytes], None], lost: Callable[[bytes], None]) -> None:
        """Be told of pages that no boundary can use any more, and of pages that are nowhere."""
        self._listeners.append((useless, lost))

    def useful(self, page_hash: bytes) -> bool:
        """Whether some boundary can use the page."""
        return page_hash in self._uses

    def add_page(self, page_hash: bytes, parent: bytes) -> None:
        """A tier holds a page."""
        copies = self._copies.get(page_hash, 0)
        self._copies[page_hash] = copies + 1
        if not copies:
            self._parents[page_hash] = parent
            if page_hash in self._uses:
                self._gain(parent)

    def drop_page(self, page_hash: bytes, *, stored: bool | None) -> None:
        """A tier holds a page no longer.

        Args:
            page_hash: The page.
            stored: Whether storage has it; None: the tier cannot know.
        """
        if stored is not None:
            (self._stored.add if stored else self._stored.discard)(page_hash)
        self._copies[page_hash] -= 1
        if self._copies[page_hash]:
            return
        del self._copies[page_hash]
        parent = self._parents.pop(page_hash)
        behind = self._behind.pop(page_hash, set())
        self._num_behind -= len(behind)
        if page_hash in self._uses:
            self._lose(parent)
            behind.add(page_hash)
        if page_hash not in self._stored:
            self._tell_lost(behind)
            return
        self._stored.remove(page_hash)
        if behind:
            self._leave_behind(parent if parent in self._copies else NOWHERE, behind)

    def add_checkpoint(self, page_hash: bytes) -> None:
        """A tier holds what a boundary behind this page keeps."""
        self._gain(page_hash)

    def drop_checkpoint(self, page_hash: bytes) -> None:
        self._lose(page_hash)

    def forget_storage(self) -> None:
        """Storage is another one, of which nothing is known: what only it had is lost."""
        self._stored.clear()
        known, self._behind, self._num_behind = self._behind, {}, 0
        for behind in known.values():
            self._tell_lost(name for name in behind if name not in self._copies)

    def _leave_behind(self, page_hash: bytes, names: set[bytes]) -> None:
        """Some pages are in storage alone, all the way from this one on: lost once it is lost."""
        known = self._behind.get(page_hash, set())
        more, fewer = (known, names) if len(known) > len(names) else (names, known)
        self._num_behind += len(names - known)
        self._behind[page_hash] = more
        more |= fewer
        if self._num_behind > self._most_behind:  # mostly of boundaries that were given up
            useful = {at: names & self._uses.keys() for at, names in self._behind.items()}
            self._behind = {at: names for at, names in useful.items() if names}
            self._num_behind = sum(map(len, self._behind.values()))
            self._most_behind = LEAST_BEHIND + 2 * self._num_behind

    def _tell_lost(self, names: Iterable[bytes]) -> None:
        for name in names:
            for _, lost in self._listeners:
                lost(name)

    def _gain(self, page_hash: bytes) -> None:
        at: bytes | None = page_hash
        while at is not None:
            uses = self._uses.get(at, 0)
            self._uses[at] = uses + 1
            at = None if uses else self._parents.get(at)

    def _lose(self, page_hash: bytes) -> None:
        at: bytes | None = page_hash
        while at is not None:
            self._uses[at] -= 1
            if self._uses[at]:
                return
            del self._uses[at]
            for useless, _ in self._listeners:
                useless(at)
            at = self._parents.get(at)
