"""What of the host tier is in storage: written (the store said so) or saved (it was seen there)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import monotonic
from typing import Any

Slot = tuple[str, bytes]  # index space, page hash
FIRST_REST = 6  # times ``reprove_s``


@dataclass(slots=True)
class _Resting:
    scope: str
    until: float


class Ledger:
    """Host slots that are not saved yet. Used under the caches' lock.

    A slot that storage has lost is written again at once. One that it loses again and again does
    not fit there beside what is used more: it rests, each time twice as long.

    Attributes:
        num_written: Slots that became written, ever.
        num_saved: Slots that became saved, ever.
        num_coming: Slots that are on their way to the host tier.
        num_lost: Slots that no tier has any more and storage never had, ever.
    """

    def __init__(self, reprove_s: float, clock: Callable[[], float] = monotonic) -> None:
        self.num_written = self.num_saved = self.num_lost = self.num_coming = 0
        self._reprove_s, self._clock = reprove_s, clock
        self._unwritten: dict[Slot, str] = {}
        self._unproven: dict[Slot, str] = {}
        self._asked_at: dict[Slot, float] = {}  # of the unproven
        self._resting: dict[Slot, _Resting] = {}
        self._failed: set[Slot] = set()  # of the unwritten: nobody is about to write them
        self._num_losses: dict[Slot, int] = {}  # in a row

    @property
    def num_unsaved(self) -> int:
        known = len(self._unwritten) + len(self._unproven) + len(self._resting)
        return self.num_coming + known

    @property
    def num_resting(self) -> int:
        """Slots that storage has lost again and again."""
        return len(self._resting)

    @property
    def unwritten(self) -> dict[Slot, str]:
        """Slots to be written, with their scopes."""
        return dict(self._unwritten)

    def lacks(self, slot: Slot) -> bool:
        """Whether storage does not have a slot of the host tier."""
        return slot in self._unwritten or slot in self._resting

    @property
    def failed(self) -> dict[Slot, str]:
        """Unwritten slots that were tried before or got lost, with their scopes."""
        return {slot: self._unwritten[slot] for slot in self._failed}

    @property
    def has_failed(self) -> bool:
        return bool(self._failed)

    def to_ask(self) -> dict[Slot, str]:
        """Written slots to look for now, with their scopes: each once per ``reprove_s``."""
        now, due = self._clock(), {}
        for slot, scope in self._unproven.items():
            asked_at = self._asked_at.get(slot)
            if asked_at is None or now - asked_at >= self._reprove_s:
                self._asked_at[slot] = now
                due[slot] = scope
        return due

    def wake(self) -> bool:
        """Let what has rested long enough be written again; whether there is any."""
        now = self._clock()
        rested = [slot for slot, one in self._resting.items() if one.until <= now]
        for slot in rested:
            self._set_unwritten(slot, self._resting.pop(slot).scope)
        return bool(rested)

    def expect(self, space: str, page_hashes: Iterable[bytes], scope: str) -> None:
        """Slots that have to be written."""
        unproven, unwritten = self._unproven, self._unwritten
        for slot in zip(repeat(space), page_hashes, strict=False):
            if slot not in unproven:
                unwritten[slot] = scope

    def lose(self, slots: Iterable[Slot], scope: str) -> None:
        """Slots that storage does not have and that are wanted there: written again at once."""
        lost = list(slots)
        self._forget(lost)
        for slot in lost:
            self._set_unwritten(slot, scope)

    def refused(self, space: str, page_hashes: Iterable[bytes]) -> None:
        """The store did not take these slots."""
        for page_hash in page_hashes:
            if (space, page_hash) in self._unwritten:
                self._failed.add((space, page_hash))

    def wrote(self, space: str, page_hashes: Iterable[bytes], seen: Iterable[bool]) -> None:
        """The store took these slots, or (``seen``) was found to have them."""
        unwritten, unproven, failed = self._unwritten, self._unproven, self._failed
        slots = zip(repeat(space), page_hashes, strict=False)
        for slot, was_seen in zip(slots, seen, strict=True):
            scope = unwritten.pop(slot, None)
            if failed:
                failed.discard(slot)
            if scope is None:
                continue
            self.num_written += 1
            if was_seen:
                self._saved(slot)
            else:
                unproven[slot] = scope

    def asked(self, slot: Slot, *, seen: bool) -> None:
        """A written slot was looked for."""
        scope = self._unproven.pop(slot, None)
        self._asked_at.pop(slot, None)
        if scope is None:
            return
        if seen:
            self._saved(slot)
            return
        losses = self._num_losses[slot] = self._num_losses.get(slot, 0) + 1
        if losses == 1:
            self._set_unwritten(slot, scope)
        else:
            rest_s = FIRST_REST * self._reprove_s * 2.0 ** min(losses - 2, 32)
            self._resting[slot] = _Resting(scope, self._clock() + rest_s)

    def forget(self, space: str, page_hashes: Iterable[bytes]) -> list[bytes]:
        """The host tier gave slots up; those that storage was still to get."""
        slots = list(zip(repeat(space), page_hashes, strict=False))
        unwritten = self._unwritten
        lost = [slot[1] for slot in slots if slot in unwritten] if unwritten else []
        self._forget(slots)
        return lost

    def _forget(self, slots: Sequence[Slot]) -> None:
        known: tuple[dict[Slot, Any], ...] = (
            self._unwritten,
            self._unproven,
            self._asked_at,
            self._resting,
            self._num_losses,
        )
        for one in filter(None, known):
            for slot in slots:
                one.pop(slot, None)
        self._failed.difference_update(slots)

    def _set_unwritten(self, slot: Slot, scope: str) -> None:
        self._unwritten[slot] = scope
        self._failed.add(slot)

    def _saved(self, slot: Slot) -> None:
        self.num_saved += 1
        self._num_losses.pop(slot, None)
