"""Reads from storage into the host tier: in parts, on workers, waited for as the policy says.

Slots stay taken until the call that reads into them is over; what comes late is adopted, too.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from threading import Condition, Lock, get_ident
from time import monotonic

from composer.boundary import Bools
from composer.controller import PoolTransferResult
from composer.reading.fetch_plan import FetchPlan, Part
from composer.reading.landing import Arrived, add_checkpoint, adopt
from composer.reading.lookup import Tiers
from composer.residency.pins import Pins
from composer.schema import PolicyConfig, PrefetchPolicy
from composer.transfer import PoolTransfer

log = logging.getLogger(__name__)


class Patience:
    """A time to wait from now on; None: for ever."""

    def __init__(self, wait_s: float | None) -> None:
        self._end = None if wait_s is None else monotonic() + wait_s

    @property
    def left_s(self) -> float | None:
        return None if self._end is None else max(self._end - monotonic(), 0.0)


class Fetch:
    """One fetch. Whoever waits for all of it reads the next part himself where nobody does.

    Attributes:
        num_pages: Prefix that is restorable once all has arrived.
        hashes: Index space -> what is being fetched.
        results: What became of the parts that were read.
    """

    def __init__(self, tiers: Tiers, plan: FetchPlan, end: Callable[[Fetch], None]) -> None:
        self._tiers, self._plan, self._end = tiers, plan, end
        self.num_pages = plan.num_pages
        every = plan.prompt.hashes
        self.hashes = {s: {every[page] for page in pages} for s, pages in plan.pages.items()}
        self._parts = deque(plan.parts(tiers))
        self.results: list[PoolTransferResult] = []
        self._pins = Pins(tiers.host, "prefetch")
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._reader: int | None = None
        self._ended = self._unwanted = False
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing of it is under way any more."""
        return self._ended

    @property
    def is_own(self) -> bool:
        """Whether this very thread is reading it."""
        return self._reader == get_ident()

    def without(
        self, page_hashes: Sequence[bytes], stored: Mapping[str, Bools]
    ) -> dict[str, Bools]:
        """What storage holds of a prefix, less what is on its way already."""
        return {
            space: flags & [one not in self.hashes.get(space, ()) for one in page_hashes]
            for space, flags in stored.items()
        }

    def run(self) -> None:
        """Return when it has ended.

        Raises:
            Exception: What a read raised that is no miss.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._reader is None)
                if self._ended:
                    break
                self._reader = get_ident()
            try:
                self._advance()
            finally:
                with self._changed:
                    self._reader = None
                    self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def wait(self, wait_s: float | None = None) -> bool:
        """Wait for it, for ever with None; whether it has ended."""
        if wait_s is None:
            self.run()
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, wait_s)

    def cancel(self) -> None:
        """Read no further part; the one that is being read is adopted when it comes."""
        with self._lock:
            parts, self._parts = self._parts, deque()
        self._give_back(parts)

    def let_go(self) -> None:
        """Whoever started it needs what arrived no more: it may be evicted once all has ended."""
        with self._tiers.lock:
            self._unwanted = True
            if self._ended:
                self._pins.release()

    def _advance(self) -> None:
        """Read a part, or end. Only one thread is here at a time."""
        with self._lock:
            part = self._parts.popleft() if self._parts else None
        try:
            if part is None:
                self._finish()
            elif not self._read(part):
                self.cancel()  # nothing behind a gap is of use
        except BaseException as error:  # told to all who wait, in whatever thread
            self._error = error
            self._tiers.controller.counters.add("prefetch_failed")
            log.error("a prefetch failed: %s: %s", type(error).__name__, error)
            self.cancel()
            self._finish()
            if not isinstance(error, Exception):
                raise

    def _finish(self) -> None:
        plan, tiers = self._plan, self._tiers
        with tiers.lock:
            if self._error is None:
                # what was read stays, whatever the device can hold
                add_checkpoint(tiers.host, plan.prompt, plan.wanted)
            if self._unwanted:
                self._pins.release()
            self._end(self)
            self._ended = True

    def _read(self, part: Part) -> bool:
        """Read and adopt; False: a page is missing."""
        tiers, prompt = self._tiers, self._plan.prompt
        transfers = [
            PoolTransfer(
                space,
                host_ids=piece.slots,
                page_hashes=[prompt.hashes[page] for page in piece.pages],
                scope=prompt.scope,
            )
            for space, piece in part.items()
        ]
        try:
            results = tiers.controller.prefetch(transfers)
        except BaseException:
            self._give_back([part])
            raise
        self.results += results
        arrived: dict[str, Arrived] = {}
        failed: set[int] = set()
        with tiers.lock:
            for result in results:
                space, piece = result.pool, part[result.pool]
                one = Arrived(piece.pages, piece.slots, result.degraded.tolist())
                if not result.ok.all():
                    if space in tiers.host.page_spaces:
                        failed.update(compress(piece.pages, ~result.ok))
                    one, others = one.split(result.ok)
                    tiers.host.give_back({space: others})
                arrived[space] = one
            adopt(tiers.host, prompt, arrived, self._pins, failed)
        return not failed

    def _give_back(self, parts: Iterable[Part]) -> None:
        with self._tiers.lock:
            for part in parts:
                self._tiers.host.give_back({space: one.slots for space, one in part.items()})


class Prefetcher:
    """All fetches that are under way, and how much and how long the policy allows."""

    def __init__(self, tiers: Tiers, policy: PolicyConfig) -> None:
        self._tiers, self._policy = tiers, policy
        self._coming: list[Fetch] = []
        self._num_held: Counter[str] = Counter()  # host slots of fetches, by index space

    def start(self, plan: FetchPlan) -> Fetch:
        """Register a fetch, which somebody has to run. Used under the caches' lock."""
        fetch = Fetch(self._tiers, plan, self._ended)
        self._coming.append(fetch)
        self._num_held.update({space: len(slots) for space, slots in plan.slots.items()})
        return fetch

    def submit(self, fetch: Fetch) -> None:
        """Run a fetch on a worker."""
        self._tiers.controller.readers.submit(fetch.run)

    def coming(self, hashes: Sequence[bytes]) -> list[Fetch]:
        """Fetches of other threads that bring some of these pages."""
        wanted = set(hashes) if self._coming else set()
        with self._tiers.lock:
            return [
                one
                for one in self._coming
                if not one.is_own and any(wanted & found for found in one.hashes.values())
            ]

    def room(self) -> dict[str, int] | None:
        """Host slots that fetches may still take, by index space; None: as many as there are."""
        share, spaces = self._policy.prefetch_host_share, self._tiers.plan.spaces
        if share == 1.0:
            return None
        return {
            name: int(share * space.num_host_slots) - self._num_held[name]
            for name, space in spaces.items()
        }

    def patience(self, num_tokens: int) -> Patience:
        """How long a restore waits for so many tokens, beginning now."""
        return Patience(WAITS[self._policy.prefetch](self._policy, num_tokens))

    def settle(self) -> None:
        """End all fetches: what has arrived stays, the rest is given up."""
        with self._tiers.lock:
            coming = list(self._coming)
        for fetch in coming:
            if not fetch.is_own:
                fetch.cancel()
                fetch.wait()

    def _ended(self, fetch: Fetch) -> None:
        self._coming.remove(fetch)
        self._num_held.subtract({space: len(found) for space, found in fetch.hashes.items()})


def _timeout_s(policy: PolicyConfig, num_tokens: int) -> float:
    more = policy.prefetch_timeout_per_ki_token_s * num_tokens / 1024
    return min(policy.prefetch_timeout_s + more, policy.prefetch_timeout_max_s)


WAITS: Mapping[PrefetchPolicy, Callable[[PolicyConfig, int], float | None]] = {
    PrefetchPolicy.best_effort: lambda _policy, _num_tokens: 0.0,
    PrefetchPolicy.wait_complete: lambda _policy, _num_tokens: None,
    PrefetchPolicy.timeout: _timeout_s,
}
