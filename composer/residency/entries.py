"""What a tier holds: slots in use, pages of chains, and boundaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from composer.residency.eviction import Use


@dataclass(slots=True)
class Resident:
    """One slot in use.

    Attributes:
        degraded: Its optional pools hold nothing.
        holders: Checkpoints and operations that keep a trailing slot.
        keepers: The checkpoints among them.
    """

    slot: int
    degraded: bool = False
    holders: int = 0
    keepers: int = 0


@dataclass(slots=True, eq=False)
class PageEntry(Use):
    """One page of a chain, in all spaces that keep every page.

    Attributes:
        slots: Its slot in each of these spaces, in their order.
        degraded: Per space, whether its optional pools hold nothing.
        above: The page that it continues, where that is here, too.
        children: Pages here that continue it.
        locks: Who uses it now.
        is_here: Whether the tier still holds it.
    """

    page_hash: bytes
    parent: bytes
    scope: str
    slots: tuple[int, ...]
    degraded: tuple[bool, ...]
    above: PageEntry | None = None
    children: int = 0
    locks: int = 0
    is_here: bool = True


class PageSlots(Mapping[bytes, Resident]):
    """What one of these spaces holds: a view of the pages, at one place of their slots."""

    def __init__(self, pages: Mapping[bytes, PageEntry], place: int) -> None:
        self._pages, self._place = pages, place

    def __getitem__(self, page_hash: bytes) -> Resident:
        page = self._pages[page_hash]
        return Resident(page.slots[self._place], page.degraded[self._place])

    def __contains__(self, page_hash: object) -> bool:
        return page_hash in self._pages

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)


@dataclass(slots=True)
class Checkpoint(Use):
    """A boundary: the hashes that each trailing space holds for it."""

    page_hash: bytes
    scope: str
    holds: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
