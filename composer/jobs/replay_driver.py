"""Plays an engine: serves prompts from a stack, and compares every byte that it claims to hit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from composer.jobs.pattern import PagePattern
from composer.jobs.replay_tally import MOST_DETAILS, Tally
from composer.lease import Lease, Slots
from composer.lookup import TIERS, Match
from composer.stack import Stack

FAR_TOKENS = 512  # hits behind this many tokens are counted apart


class Driver:
    """Serves prompts one after another."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._pattern = stack, PagePattern(stack.device)
        self._page_size = stack.page_size
        self.tally = Tally()

    def serve(self, tokens: npt.NDArray[np.int64]) -> None:
        """One prompt: match, restore, verify, compute what is missing, commit."""
        tally, stack = self.tally, self._stack
        match = stack.match(tokens)
        with stack.restore(match) as lease:
            self._count(len(tokens), lease)
            self._verify(match, lease)
            start = lease.num_pages
            # A prompt that fits is computed while its prefix is held, as an engine would.
            done = self._compute(tokens, match, start, self._num_pages(tokens) - start)
        while done < self._num_pages(tokens):
            stack.cache.writer.drain()  # the part before is backed up, and free to be evicted
            step = self._compute(tokens, match, done, self._num_pages(tokens) - done)
            if step == done:
                tally.unserved += 1
                return
            done = step

    def _num_pages(self, tokens: npt.NDArray[np.int64]) -> int:
        return -(-len(tokens) // self._page_size)

    def _compute(
        self, tokens: npt.NDArray[np.int64], match: Match, start: int, num_pages: int
    ) -> int:
        """Compute pages from ``start`` on, as many as there is room for; returns where it ended."""
        while num_pages:
            end = start + num_pages
            for boundaries in self._boundaries(match, start, end):
                slots = self._stack.allocate(num_pages, len(boundaries))
                if slots is not None:
                    self._fill_and_commit(tokens[: end * self._page_size], match, slots, boundaries)
                    return end
            num_pages //= 2
        return start

    def _boundaries(self, match: Match, start: int, end: int) -> Iterator[list[int]]:
        """What to keep of some pages: all that is worth it, and ever less where states are short.

        Their end is always kept: the next part goes on from there.
        """
        size, full_end = self._page_size, min(end, len(match.prompt.hashes))
        has_states = any(space.is_state for space in self._stack.plan.spaces.values())
        limit: int | None = None
        while True:
            wanted = self._stack.checkpoints(match, start * size, limit)
            found = {at for at in wanted if at <= end * size}
            if start < full_end:
                found.add(full_end * size)
            yield sorted(found)
            limit = len(wanted) // 2
            if not has_states or not limit:
                return

    def _fill_and_commit(
        self,
        tokens: npt.NDArray[np.int64],
        match: Match,
        slots: Slots,
        boundaries: list[int],
    ) -> None:
        prompt = match.prompt
        for space, ids in slots.pages.items():
            first = -(-len(tokens) // self._page_size) - len(ids)
            hashes = prompt.hashes[first : len(tokens) // self._page_size]
            self._pattern.fill(space, ids[: len(hashes)], hashes)
        states: dict[int, Any] = dict.fromkeys(boundaries)
        for at, state in zip(boundaries, slots.states, strict=False):
            for space, slot in state.items():
                self._pattern.fill(space, [slot], [prompt.hashes[at // self._page_size - 1]])
            states[at] = state
        with slots:
            committed = self._stack.commit(tokens, slots, states)
        self.tally.checkpoints += committed.num_checkpoints
        self.tally.incomplete_checkpoints += len(committed.incomplete)

    def _count(self, num_tokens: int, lease: Lease) -> None:
        tally = self.tally
        tally.requests += 1
        tally.input_tokens += num_tokens
        tally.hit_tokens.update(lease.hit_tokens)
        far = lease.page_tiers[-(-FAR_TOKENS // self._page_size) :]
        for index, tier in enumerate(TIERS):
            tally.far_tokens[tier] += int(np.count_nonzero(far == index)) * self._page_size
        if lease.shortened_by is not None:
            tally.shortened_by[lease.shortened_by] += 1
        tally.degraded.update(lease.degraded)

    def _verify(self, match: Match, lease: Lease) -> None:
        hashes = match.prompt.hashes[: lease.num_pages]
        wrong: list[str] = []
        for space, ids in lease.pages.items():
            held = hashes[len(hashes) - len(ids) :]
            wrong += self._pattern.mismatches(space, ids, held, lease.degraded)
            self.tally.pages_verified += len(ids)
        for space, slot in lease.states.items():
            wrong += self._pattern.mismatches(space, [slot], hashes[-1:], lease.degraded)
            self.tally.states_verified += 1
        self.tally.mismatches += len(wrong)
        self.tally.details += wrong[: MOST_DETAILS - len(self.tally.details)]
