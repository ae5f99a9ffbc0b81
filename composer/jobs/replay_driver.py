"""Plays an engine: serves prompts from a stack, and compares every byte that it claims to hit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from composer.jobs.pattern import PagePattern
from composer.jobs.replay_tally import MOST_DETAILS, Tally
from composer.jobs.serving import Serving
from composer.reading.lease import Lease, Slots
from composer.reading.lookup import Match, Prompt
from composer.stack import Stack


class Driver:
    """Serves prompts one after another."""

    def __init__(self, stack: Stack) -> None:
        self.tally, self._page_size = Tally(), stack.page_size
        self._serving = Serving(stack, self.tally, _Verification(stack, self.tally))

    def serve(self, tokens: npt.NDArray[np.int64]) -> None:
        """One prompt: match, restore, verify, compute what is missing, commit."""
        self._serving.serve(Prompt.of(tokens, self._page_size))


class _Verification:
    """Bytes that only the right page can have, in device slots."""

    def __init__(self, stack: Stack, tally: Tally) -> None:
        self._pattern, self._tally = PagePattern(stack.device), tally
        self._page_size = stack.page_size

    def restored(self, match: Match, lease: Lease) -> None:
        hashes = match.prompt.hashes[: lease.num_pages]
        tally = self._tally
        wrong: list[str] = []
        for space, ids in lease.pages.items():
            held = hashes[len(hashes) - len(ids) :]
            wrong += self._pattern.mismatches(space, ids, held, lease.degraded)
            tally.pages_verified += len(ids)
        for space, slot in lease.states.items():
            wrong += self._pattern.mismatches(space, [slot], hashes[-1:], lease.degraded)
            tally.states_verified += 1
        tally.mismatches += len(wrong)
        tally.details += wrong[: MOST_DETAILS - len(tally.details)]

    def computed(self, prompt: Prompt, slots: Slots, boundaries: Sequence[int]) -> None:
        for space, ids in slots.pages.items():
            first = -(-prompt.num_tokens // self._page_size) - len(ids)
            hashes = prompt.hashes[first:]
            self._pattern.fill(space, ids[: len(hashes)], hashes)
        for at, state in zip(boundaries, slots.states, strict=False):
            page_hash = prompt.hashes[at // self._page_size - 1]
            for space, slot in state.items():
                self._pattern.fill(space, [slot], [page_hash])
