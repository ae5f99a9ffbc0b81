"""Brings a matched prefix into the device tier: storage -> host -> device.

What was read decides: after each step the boundary is asked again. A tier without room shortens it.
"""

from __future__ import annotations

from composer.reading.landing import Landing
from composer.reading.lease import Lease
from composer.reading.load_back import LayerNeeds, Load
from composer.reading.lookup import Lookup, Match, Prompt, Tiers
from composer.reading.operation import Operation, Save
from composer.reading.prefetch import Fetch, Patience, Prefetcher
from composer.reading.report import Reports


class Restore:
    """Restores matches, one ``Operation`` each."""

    def __init__(self, tiers: Tiers, lookup: Lookup, save: Save, prefetcher: Prefetcher) -> None:
        self._tiers, self._lookup, self._save = tiers, lookup, save
        self._prefetcher = prefetcher
        self._needs = LayerNeeds(tiers.plan.spec)
        self._loading: dict[Load, Match] = {}
        self.reports = Reports()

    def restore(self, match: Match, *, wait: bool = True) -> Lease:
        """Bring the prefix into the device tier and keep it there.

        Args:
            match: What was found.
            wait: Return when it is there; False: while it is loaded, layer by layer on a worker.

        Returns:
            A lease whose boundary may be shorter than the match's, down to nothing.
        """
        operation = Operation(self._tiers, match, self._prefetcher)
        landing = operation.stay() or self._bring(operation, match)
        try:
            load = Load(self._needs, landing.steps(by_layer=not wait), landing.end)
            if load.ended:
                landing.end(None)
            lease = operation.lease(self._lookup, landing, load)
            self.reports.add(match.prompt.hashes, lease.report)
        except BaseException as error:
            landing.end(error)
            raise
        if not load.ended:
            self._start(load, match, wait=wait)
        return lease

    def _bring(self, operation: Operation, match: Match) -> Landing:
        """Reserve and fetch what the device tier lacks of a prefix."""
        try:
            patience = self._prefetcher.patience(match.hit_tokens["storage"])
            operation.await_coming(patience)
            operation.look_again(self._lookup)
            operation.reserve_host()
            operation.prefetch(patience)
            operation.reserve_device(self._save)
            return operation.land()
        finally:
            operation.close()

    def prefetch(self, match: Match) -> Fetch:
        """Start to bring what only storage holds of a prefix into the host tier."""
        operation = Operation(self._tiers, match, self._prefetcher)
        try:
            operation.await_coming(Patience(0.0))
            operation.look_again(self._lookup)
            operation.reserve_host()
            fetch = operation.start_fetch()
        finally:
            operation.close()
        self._prefetcher.submit(fetch)
        return fetch

    @property
    def num_loading(self) -> int:
        """Loads that are under way."""
        return sum(not load.ended for load in list(self._loading))

    def settle(self, prompt: Prompt | None = None) -> None:
        """Return when nothing of a prompt (None: of any) is being loaded, well or not."""
        with self._tiers.lock:
            loading = list(self._loading.items())
        for load, match in loading:
            if prompt is None or match.prompt.hashes[0] in prompt.hashes[:1]:
                load.run()

    def _start(self, load: Load, match: Match, *, wait: bool) -> None:
        if wait:
            load.run()
            load.raise_error()
            return
        with self._tiers.lock:
            self._loading = {one: m for one, m in self._loading.items() if not one.ended}
            self._loading[load] = match
        self._tiers.controller.readers.submit(load.run)
