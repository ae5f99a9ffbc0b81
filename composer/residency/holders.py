"""Who keeps slots of a tier from being evicted, by name."""

from __future__ import annotations

from composer.errors import InvariantError


class Holders:
    """Locks on the slots of one tier, counted by holder and index space."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._locks: dict[tuple[str, str], int] = {}

    def add(self, holder: str, space: str, number: int) -> None:
        """``holder`` has so many locks more; fewer where negative.

        Raises:
            InvariantError: It would have fewer than none.
        """
        left = self._locks.get((holder, space), 0) + number
        self._locks[holder, space] = left
        if left < 0:
            self._locks[holder, space] = 0
            raise InvariantError(
                f"{self._tier}: {holder} has {left} locks in {space} (released twice?); "
                f"held: {self.snapshot() or 'nothing'}"
            )

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Holder -> index space -> locks, without those who hold nothing."""
        held: dict[str, dict[str, int]] = {}
        for (holder, space), number in self._locks.items():
            if number:
                held.setdefault(holder, {})[space] = number
        return held
