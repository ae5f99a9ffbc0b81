"""Movement of pages and states between device, host and storage, all pools of a page together.

The controller moves what it is told to and says what arrived; which pages exist and who may use
them is the prefix cache's business. Work for later goes to the executor that the controller was
given, so that tests can take one step at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence, Sized
from concurrent.futures import Executor
from dataclasses import field
from functools import partial, reduce
from operator import and_
from time import monotonic
from typing import ClassVar

import numpy as np

from composer.boundary import Bools, all_true
from composer.counters import Counters
from composer.device_pools import DevicePoolGroup
from composer.group import HostPoolGroup
from composer.guard import Guard
from composer.layout import Ints
from composer.objects import ArenaObjects, Found, Names, split
from composer.quarantine import Quarantine
from composer.record import record
from composer.schema import Verify
from composer.storage import StorageBackend
from composer.transfer import Moved, PoolTransfer, Transfer
from composer.upkeep import Upkeep

_NO_PAGES = np.zeros(0, dtype=np.bool_)
Refused = MutableMapping[str, Mapping[str, int]]  # storage object -> reason -> count


@record
class PoolTransferResult:
    """What became of one PoolTransfer, per page.

    Attributes:
        ok: Every required pool is there (or was written).
        seen: It was in storage before.
        refused: Storage object -> reason -> how many could not be read.
        degraded: Required pools are there, an optional one is not.
    """

    pool: str
    ok: Bools
    degraded: Bools = field(default_factory=lambda: _NO_PAGES)
    seen: Bools = field(default_factory=lambda: _NO_PAGES)
    refused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class HybridCacheController:
    """Moves slots of all index spaces between the tiers.

    With ``poison`` every destination is overwritten before it is read into.

    Attributes:
        backend: None while detached: every lookup is a miss, every write is refused.
        guard: Makes every call of the backend.
        writers: Run what moves to slower tiers.
        readers: Run what moves to faster tiers; the same, where nobody sets others.
        written, read: Bytes and seconds of storage transfers.
    """

    make_objects: ClassVar[type[ArenaObjects]] = ArenaObjects

    def __init__(
        self,
        device: DevicePoolGroup,
        host: HostPoolGroup,
        backend: StorageBackend | None,
        executor: Executor,
        *,
        verify: Verify = Verify.checksum,
        poison: bool = False,
    ) -> None:
        self.device, self.host = device, host
        self.backend: StorageBackend | None = None
        self.transfer = Transfer(device, host, poison=poison)
        self.counters = Counters()
        self.guard = Guard(self.counters)
        self._quarantine = Quarantine(host, self.counters)
        self.written, self.read = Moved(), Moved()
        self.writers = self.readers = executor
        make = partial(self.make_objects, checksum=verify is Verify.checksum, poison=poison)
        everything = [make(arena) for arena in host.arenas.values()]
        self._objects = {n: [o for o in everything if o.arena.spec.space == n] for n in host.spaces}
        for one in everything:
            one.grouped = len(self._objects[one.arena.spec.space]) > 1
        required = [one for one in everything if one.arena.spec.required]
        self._required = {n: [o for o in required if o.arena.spec.space == n] for n in host.spaces}
        self._upkeep = Upkeep(everything, self.guard)
        if backend is not None:
            self.attach(backend)

    def attach(self, backend: StorageBackend) -> None:
        """Use a backend from now on, every buffer registered with it once."""
        backend.register([*self.host.regions, self._upkeep.manifests.region])
        self._upkeep.renew()
        self.guard.renew()
        self.backend = backend

    def detach(self) -> StorageBackend | None:
        """Use no backend from now on; the caller closes the one returned."""
        backend, self.backend = self.backend, None
        return backend

    def clock(self) -> float:
        """Seconds since some moment: what is done now and then goes by it."""
        return monotonic()

    def backup(self, transfers: Sequence[PoolTransfer]) -> None:
        """Copy device -> host, all pools of each index space."""
        self.transfer.backup(transfers)

    def load_back(self, transfers: Sequence[PoolTransfer]) -> None:
        """Copy host -> device, all pools of each index space."""
        self.transfer.load_back(transfers)

    def exists(self, transfers: Sequence[PoolTransfer]) -> list[PoolTransferResult]:
        """Ask storage which pages have all their required objects, in one call.

        Where an index space stores nothing that is required, nothing is missing.
        """
        return list(map(_asked, transfers, self._found([self._names(one) for one in transfers])))

    def write_storage(
        self, transfers: Sequence[PoolTransfer], renew: Sequence[PoolTransfer] = ()
    ) -> list[PoolTransferResult]:
        """Write host slots; what storage already has is not written again.

        Args:
            transfers: Host slots and what they hold.
            renew: Pages of the same chains that are only asked for, in the same call, which
                keeps them alive in the store.

        Returns:
            One result per transfer, and then, while there is a backend, one per renewal.
        """
        if self.backend is None:
            none = [(one.pool, _none(one.page_hashes)) for one in transfers]
            return [PoolTransferResult(pool, ok, seen=ok) for pool, ok in none]
        everything = [*transfers, *renew]
        names = [self._names(one) for one in everything]
        found = self._found(names)
        written = [self._write(*asked) for asked in zip(transfers, found, names, strict=False)]
        return [*written, *map(_asked, renew, found[len(transfers) :])]

    def prefetch(self, transfers: Sequence[PoolTransfer]) -> list[PoolTransferResult]:
        """Read host slots from storage; what is not ok is undefined memory."""
        results = []
        for one in transfers:
            ok = all_true(len(one.page_hashes))
            degraded = np.zeros(len(ok), dtype=np.bool_)
            refused: dict[str, Mapping[str, int]] = {}
            for objects in reversed(self._objects[one.pool]):
                todo = ok.nonzero()[0]
                got = self._get(objects, one, todo, refused)
                missed = todo[~got]
                if not len(missed):
                    continue
                if objects.arena.spec.required:
                    ok[missed] = False
                else:
                    held = self.host.spaces[one.pool].is_held
                    late = np.array([held(one.host_ids[p]) for p in missed.tolist()], np.bool_)
                    ok[missed[late]] = False  # what still arrives there must not be seen
                    missed = missed[~late]
                    degraded[missed] = True
                    objects.wipe([one.host_ids[page] for page in missed.tolist()])
            results.append(PoolTransferResult(one.pool, ok, degraded & ok, refused=refused))
        return results

    def count_objects(self) -> int | None:
        """Objects of this stack's namespaces in storage; None where they cannot be listed."""
        return 0 if self.backend is None else self._upkeep.count(self.backend)

    def remove_all(self, scope: str | None) -> dict[str, int | None]:
        """Remove a scope's objects (None: those of every scope) from storage.

        Returns:
            How many were removed and how many are left, e.g. leased; None where the backend
            cannot list its objects.
        """
        if self.backend is None:
            return {"storage_removed": 0, "storage_left": 0}
        return self._upkeep.remove(self.backend, scope)

    def _names(self, one: PoolTransfer) -> Names:
        """Keys of a transfer's required objects."""
        required = self._required[one.pool]
        return {objects: objects.keys(one.scope, one.page_hashes) for objects in required}

    def _found(self, names: Sequence[Names]) -> list[Found]:
        """Of which pages storage has the objects of these names, per transfer."""
        everything = [key for one in names for keys in one.values() for key in keys]
        return split(names, self.ask(everything))

    def _write(self, one: PoolTransfer, found: Found, names: Names) -> PoolTransferResult:
        known = _all(one, found)
        ok, mine = all_true(len(known)), ~known
        optional = mine.nonzero()[0] if found else np.arange(len(known))
        if any(one.degraded):
            optional = optional[~np.asarray(one.degraded, dtype=np.bool_)[optional]]
        for objects in self._objects[one.pool]:
            if not objects.arena.spec.required:
                self._put(objects, one, optional)
                continue
            lacking = (mine & ~found[objects]).nonzero()[0]
            lacking = lacking[~self._put(objects, one, lacking, names[objects])]
            ok[lacking] = False
            mine[lacking] = not objects.arena.spec.writes  # another rank will, at its own time
        return PoolTransferResult(one.pool, ok, seen=known)

    def ask(self, keys: list[str]) -> Bools:
        """Which keys storage has, in one call."""
        if self.backend is None or not keys:
            return _none(keys)
        self.counters.add("storage_queries", len(keys))
        backend = self.backend
        found = self.guard.call("exists", lambda: backend.exists(keys))
        return _none(keys) if found is None else np.asarray(found, dtype=np.bool_)

    def _put(
        self, objects: ArenaObjects, one: PoolTransfer, pages: Ints, names: list[str] | None = None
    ) -> Bools:
        """Put what this rank writes of some pages, ``names`` where known; True: written."""
        backend = self.backend
        if backend is None or not len(pages) or not objects.arena.spec.writes:
            return _none(pages)
        slots, hashes = _chosen(one, pages)
        if names is not None and len(pages) < len(names):
            names = [names[page] for page in pages.tolist()]
        sealed = objects.seal(one.scope, slots, hashes, names)
        late = self._quarantine.of(one.pool, slots)
        written = self.guard.move(
            self.written, "put", len(slots), lambda: backend.put(sealed), late
        )
        if written is None:
            return _none(pages)
        num_written = int(np.count_nonzero(written))
        self.written.num_bytes += num_written * objects.object_bytes
        self.counters.add("objects_written", num_written)
        if num_written:
            self._upkeep.explain(backend)
        self.counters.add("objects_refused", len(written) - num_written)
        return written

    def _get(self, objects: ArenaObjects, one: PoolTransfer, pages: Ints, why: Refused) -> Bools:
        """Get some pages of a transfer; True: read and verified."""
        backend = self.backend
        if backend is None or not len(pages):
            return _none(pages)
        slots, hashes = _chosen(one, pages)
        blank = objects.blank(one.scope, slots, hashes)
        late = self._quarantine.of(one.pool, slots)
        num_bytes = self.guard.move(self.read, "get", len(slots), lambda: backend.get(blank), late)
        if num_bytes is None:
            why[objects.arena.spec.name] = {"no_answer": len(pages)}
            return _none(pages)
        check = objects.check(one.scope, slots, hashes, num_bytes)
        num_read = int(np.count_nonzero(check.ok))
        self.read.num_bytes += num_read * objects.object_bytes
        self.counters.add("objects_read", num_read)
        why[objects.arena.spec.name] = check.refused
        if check.refused:
            self.counters.add_all(check.refused, "read_refused.")
            self.counters.add_all(check.refused, f"refused.{objects.arena.spec.name}.")
        if num_read < len(check.ok) and (wrong := ~check.ok & (num_bytes >= 0)).any():
            gone = self._upkeep.discard(backend, [blank.keys[i] for i in wrong.nonzero()[0]])
            self.counters.add("objects_discarded", gone)
        return check.ok


def _asked(one: PoolTransfer, found: Found) -> PoolTransferResult:
    return PoolTransferResult(one.pool, _all(one, found))


def _all(one: PoolTransfer, found: Found) -> Bools:
    """Which pages of a transfer have all their required objects."""
    return reduce(and_, found.values()) if found else all_true(len(one.page_hashes))


def _none(items: Sized) -> Bools:
    return np.zeros(len(items), dtype=np.bool_)


def _chosen(one: PoolTransfer, pages: Ints) -> tuple[Ints, Sequence[bytes]]:
    """Slots and hashes of some pages, all in most cases."""
    slots = np.asarray(one.host_ids, dtype=np.int64)
    if len(pages) == len(slots):
        return slots, one.page_hashes
    return slots[pages], [one.page_hashes[page] for page in pages.tolist()]
