"""Serves prompts from a stack as an engine would: what replays and simulations have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from composer.jobs.replay_tally import Tally
from composer.reading.lease import Lease, Slots
from composer.reading.lookup import TIERS, Match, Prompt
from composer.stack import Stack

FAR_TOKENS = 512  # hits behind this many tokens are counted apart


class Payload(Protocol):
    """What becomes of the bytes of pages and states."""

    def restored(self, match: Match, lease: Lease) -> None:
        """A prefix is in the device tier, and its bytes may be compared."""
        ...

    def computed(self, prompt: Prompt, slots: Slots, boundaries: Sequence[int]) -> None:
        """Fill the slots of a prompt's last pages, and of the states at some boundaries."""
        ...


class Serving:
    """Serves prompts one after another.

    Args:
        stack: Serves them.
        tally: Where it is counted.
        payload: Fills and compares slots; None: nobody does.
    """

    def __init__(self, stack: Stack, tally: Tally, payload: Payload | None = None) -> None:
        self._stack, self._cache, self._payload = stack, stack.cache, payload
        self._page_size = stack.page_size
        spaces = stack.plan.spaces.values()
        self._has_states = any(space.is_state for space in spaces)
        self._has_boundaries = any(space.window_pages is not None for space in spaces)
        self._tally = tally

    def serve(self, prompt: Prompt) -> None:
        """One prompt: match, restore, compute what is missing, commit."""
        cache, total = self._cache, -(-prompt.num_tokens // self._page_size)
        match = cache.match(prompt)
        with cache.restore(match) as lease:
            self._count(match, lease)
            if self._payload is not None:
                self._payload.restored(match, lease)
            start = lease.num_pages
            # A prompt that fits is computed while its prefix is held, as an engine would.
            done = self._compute(match, start, total - start)
        while done < total:
            cache.writer.drain()  # the part before is backed up, and free to be evicted
            step = self._compute(match, done, total - done)
            if step == done:
                self._tally.unserved += 1
                return
            done = step

    def _compute(self, match: Match, start: int, num_pages: int) -> int:
        """Compute pages from ``start`` on, as many as there is room for; returns where it ended."""
        while num_pages:
            end = start + num_pages
            for boundaries in self._boundaries(match, start, end):
                slots = self._cache.allocate(num_pages, len(boundaries))
                if slots is not None:
                    self._commit(self._head(match.prompt, end), slots, boundaries)
                    return end
            num_pages //= 2
        return start

    def _head(self, prompt: Prompt, num_pages: int) -> Prompt:
        """A prompt's first pages, the partial last one included."""
        num_tokens = min(num_pages * self._page_size, prompt.num_tokens)
        if num_tokens == prompt.num_tokens:
            return prompt
        return Prompt(num_tokens, prompt.hashes[:num_pages], prompt.root, prompt.scope)

    def _boundaries(self, match: Match, start: int, end: int) -> Iterator[list[int]]:
        """What to keep of some pages: all that is worth it, and ever less where states are short.

        Their end is always kept: the next part goes on from there.
        """
        size, full_end = self._page_size, min(end, len(match.prompt.hashes))
        limit: int | None = None
        while self._has_boundaries:
            wanted = self._stack.checkpoints(match, start * size, limit)
            found = {at for at in wanted if at <= end * size}
            if start < full_end:
                found.add(full_end * size)
            yield sorted(found)
            limit = len(wanted) // 2
            if not self._has_states or not limit:
                return
        yield []

    def _commit(self, prompt: Prompt, slots: Slots, boundaries: Sequence[int]) -> None:
        if self._payload is not None:
            self._payload.computed(prompt, slots, boundaries)
        states: Mapping[int, Any] = {
            **dict.fromkeys(boundaries),
            **dict(zip(boundaries, slots.states, strict=False)),
        }
        with slots:
            committed = self._cache.commit(prompt, slots, states)
        self._tally.checkpoints += committed.num_checkpoints
        self._tally.incomplete_checkpoints += len(committed.incomplete)

    def _count(self, match: Match, lease: Lease) -> None:
        tally = self._tally
        tally.requests += 1
        tally.input_tokens += match.prompt.num_tokens
        far = lease.page_tiers[-(-FAR_TOKENS // self._page_size) :]
        counts = np.bincount(far, minlength=len(TIERS)).tolist()
        for tier, far_pages in zip(TIERS, counts, strict=False):
            tally.hit_tokens[tier] += lease.hit_tokens[tier]
            tally.far_tokens[tier] += far_pages * self._page_size
        if lease.shortened_by is not None:
            tally.shortened_by[lease.shortened_by] += 1
            lost = self._cache.known_pages(match) - lease.num_pages
            tally.cut_tokens[lease.shortened_by] += max(lost, 0) * self._page_size
        for pool in lease.degraded:
            tally.degraded[pool] += 1
