"""What a tier holds: slots in use, pages of chains, and boundaries."""

from __future__ import annotations

from dataclasses import dataclass, field

from composer.eviction import Use


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


@dataclass(slots=True)
class PageEntry(Use):
    """One page of a chain, in all spaces that keep every page. ``locks``: who uses it now."""

    page_hash: bytes
    parent: bytes
    scope: str
    locks: int = 0


@dataclass(slots=True)
class Checkpoint(Use):
    """A boundary: the hashes that each trailing space holds for it."""

    page_hash: bytes
    scope: str
    holds: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
