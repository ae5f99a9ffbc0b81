"""When committed pages go on to the host and to storage. Used under the caches' lock."""

from __future__ import annotations

from collections.abc import Sequence

from composer.residency.tier import Checkpoint, PageEntry, Residency
from composer.schema import PolicyConfig
from composer.schema import WritePolicy as Name
from composer.writing.backup import Batch
from composer.writing.held_back import HeldBack


class WriteThrough:
    """At once.

    Attributes:
        held: What of the device tier is held back.
    """

    def __init__(self, device: Residency, config: PolicyConfig) -> None:
        self._config = config
        self.held = HeldBack(device)

    def committed(self, batch: Batch) -> list[Batch]:
        """What goes on when this is committed."""
        return [batch]

    def hit(self, _hashes: Sequence[bytes]) -> list[Batch]:
        """What goes on when a prefix is hit."""
        return []

    def keeps(self, _entry: PageEntry | Checkpoint) -> bool:
        """Whether something has to go on before the device tier may drop it."""
        return False

    def flush(self) -> list[Batch]:
        """What goes on when all that is to be in storage has to be there."""
        return []


class WriteSelective(WriteThrough):
    """After so many hits; what is dropped before is gone."""

    def committed(self, batch: Batch) -> list[Batch]:
        self.held.add(*_hashes(batch))
        return []

    def hit(self, hashes: Sequence[bytes]) -> list[Batch]:
        """A hit counts for all pages of the prefix, and for the boundary at its end."""
        held, enough, end = self.held, self._config.write_after_hits, None
        for page_hash in hashes:
            if page_hash in held.pages:
                held.pages[page_hash] += 1
                end = page_hash if held.pages[page_hash] >= enough else end
        if hashes and hashes[-1] in held.checkpoints:
            held.checkpoints[hashes[-1]] += 1
            end = hashes[-1] if held.checkpoints[hashes[-1]] >= enough else end
        batch = None if end is None else held.take(end, enough)
        return [] if batch is None else [batch]


class WriteBack(WriteThrough):
    """When the device tier needs the room, or everything has to be in storage."""

    def committed(self, batch: Batch) -> list[Batch]:
        self.held.add(*_hashes(batch))
        return []

    def keeps(self, entry: PageEntry | Checkpoint) -> bool:
        return entry in self.held

    def flush(self) -> list[Batch]:
        return self.held.take_all()


class WriteNothing(WriteThrough):
    """Never, where there is no host tier."""

    def committed(self, _batch: Batch) -> list[Batch]:
        return []


POLICIES = {
    Name.write_through: WriteThrough,
    Name.write_through_selective: WriteSelective,
    Name.write_back: WriteBack,
}


def _hashes(batch: Batch) -> tuple[list[bytes], list[bytes]]:
    return [one.page_hash for one in batch.pages], [one.page_hash for one in batch.checkpoints]
