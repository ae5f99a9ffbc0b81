"""The prefix cache: which prefixes are restorable, in which tier, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.boundary import longest_restorable
from composer.controller import HybridCacheController
from composer.explain import Explain
from composer.plan import StackPlan
from composer.reading.lease import Lease, Slots
from composer.reading.lookup import Lookup, Match, Prompt, Tiers
from composer.reading.prefetch import Fetch, Prefetcher
from composer.reading.restore import Restore
from composer.schema import PolicyConfig
from composer.snapshot import snapshot
from composer.writing.commit import Boundaries, Commit, Committed
from composer.writing.writer import Published, Writer


class PrefixCache:
    """Pages, windows and states of prompts over device, host and storage. Thread-safe."""

    def __init__(
        self,
        plan: StackPlan,
        controller: HybridCacheController,
        *,
        policy: PolicyConfig,
        reprove_s: float,
        retries: bool = False,
    ) -> None:
        self.plan, self.controller = plan, controller
        self.tiers = Tiers(plan, controller, policy.eviction)
        self.writer = Writer(self.tiers, policy, reprove_s=reprove_s, retries=retries)
        self.prefetcher = Prefetcher(self.tiers, policy)
        self._lookup = Lookup(self.tiers, policy.prefetch_min_tokens)
        self._restore = Restore(self.tiers, self._lookup, self.writer.save, self.prefetcher)
        self._commit = Commit(self.tiers, self.writer, policy.checkpoints_per_branch)

    def match(self, prompt: Prompt, max_tokens: int | None = None) -> Match:
        """The longest restorable prefix, as far as a lookup can tell."""
        return self._lookup.match(prompt, max_tokens)

    def restore(self, match: Match, *, wait: bool = True) -> Lease:
        """Bring a matched prefix into the device tier."""
        lease = self._restore.restore(match, wait=wait)
        try:
            self.writer.hit(match.prompt, lease.num_pages)
        except BaseException:
            lease.release()
            raise
        return lease

    def prefetch(self, match: Match) -> Fetch:
        """Start to bring what only storage holds of a prefix into the host tier."""
        return self._restore.prefetch(match)

    def settle(self) -> None:
        """Return when nothing is fetched or loaded any more; what has not arrived is given up."""
        self.prefetcher.settle()
        self._restore.settle()

    def allocate(self, num_pages: int, num_states: int = 0) -> Slots | None:
        """Device slots to compute into, or None when there is no room even after evicting."""
        spaces = self.plan.spaces
        counts = {n: num_states if one.is_state else num_pages for n, one in spaces.items()}
        taken = self.writer.take(counts)
        if taken is None:
            self.controller.counters.add("allocations_without_room")
            return None
        states = {name: ids for name, ids in taken.items() if spaces[name].is_state}
        return Slots(
            pages={name: ids for name, ids in taken.items() if name not in states},
            states=[{n: ids[index] for n, ids in states.items()} for index in range(num_states)],
            _free=self._give_back,
        )

    def commit(
        self, prompt: Prompt, slots: Slots, boundaries: Boundaries, start: int | None = None
    ) -> Committed:
        """Take computed slots over, and start their way to host and storage."""
        self._restore.settle(prompt)  # what it continues must be there
        self.controller.transfer.fence()
        return self._commit.commit(prompt, slots, boundaries, start)

    def publish(self, wait_s: float | None = None) -> Published:
        """Finish, retry and prove what has to be in storage."""
        return self.writer.publish(wait_s)

    def known_pages(self, match: Match) -> int:
        """Pages of the prompt's head that some tier holds, restorable or not."""
        hashes = match.prompt.hashes[: match.limit]
        with self.tiers.lock:
            here = self.tiers.look(hashes, match.here)
        needs = self.tiers.requirements([here.device, here.host, match.stored])
        chains = [need for need in needs if need.window_pages is None]
        return longest_restorable(chains, len(hashes)) if chains else match.num_pages

    def explain(self, prompt: Prompt) -> dict[str, Any]:
        """What each tier has of a prompt, pool by pool, and what set the boundary."""
        return Explain(self.tiers, prompt).describe(self._restore.reports.get(prompt.hashes))

    def clear(self, scope: str | None = None) -> dict[str, int | None]:
        """Forget a scope's pages (None: all) in every tier.

        Returns:
            Slots freed per tier, objects removed from storage, and objects that are still leased
            there and could not be removed.
        """
        self.writer.drain()
        self.settle()
        with self.tiers.lock:
            freed = {t: getattr(self.tiers, t).clear(scope) for t in ("device", "host")}
        removed = self.controller.remove_all(scope)
        self.writer.cleared(scope)  # what is in use is still here
        return {**freed, **removed}

    def counters(self) -> dict[str, int]:
        """Everything counted so far, and how full the tiers are, by name."""
        return snapshot(self.tiers, self.writer, self._restore.num_loading)

    def _give_back(self, slots: Mapping[str, list[int]]) -> None:
        self.controller.transfer.fence()
        with self.tiers.lock:
            self.tiers.device.give_back(slots)
