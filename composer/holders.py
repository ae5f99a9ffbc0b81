"""Who keeps slots of a tier from being evicted, by name."""

from __future__ import annotations

from collections import Counter

from composer.errors import InvariantError


class Holders:
    """Locks on the slots of one tier, counted by holder and index space."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._locks: dict[str, Counter[str]] = {}

    def add(self, holder: str, space: str, number: int) -> None:
        """``holder`` has so many locks more; fewer where negative.

        Raises:
            InvariantError: It would have fewer than none.
        """
        locks = self._locks.setdefault(holder, Counter())
        locks[space] += number
        if locks[space] < 0:
            left = locks[space]
            locks[space] = 0
            raise InvariantError(
                f"{self._tier}: {holder} has {left} locks in {space} (released twice?); "
                f"held: {self.snapshot() or 'nothing'}"
            )

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Holder -> index space -> locks, without those who hold nothing."""
        held = {name: dict(+locks) for name, locks in self._locks.items()}
        return {name: locks for name, locks in held.items() if locks}
