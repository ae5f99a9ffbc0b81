"""What must hold of a stack between any two steps, counted from outside.

The invariants of the design, by number, and where a story checks them. After every step, here:

2. all or nothing: ``pages``, ``checkpoints``; what is reserved and not adopted: ``device_slots``,
   ``host_slots``
4. a poisoned slot never escapes: ``bytes`` looks at one resident of each tier, in turn; the end of
   a story at all of them
5. no buffer is reused while I/O may touch it: ``device_slots`` and ``host_slots`` know what is on
   its way; a late write finds its bytes unchanged (``machine_store.Late``), a late read leaves junk
   that ``bytes`` would meet; callers' slots keep their stamp (``World``)
6. saved means seen: ``ledger``
7. a failure is a miss, counted: ``failures``; no rule expects an error of the store
9. isolation: ``keys``; ``Model.name`` takes two prefixes of one hash for an error
11. chains: ``chain``, ``holders``, ``reach``
12. immutable: ``bytes``, and each lease until its end

and with each rule's own answer:

3. boundaries: ``World.check_match`` (the dictionary, and each tier asked page by page),
   ``World.restore``, ``World.commit``
10. one arithmetic: ``World.open`` compares the tiers with the plan

1, 8, 13 and 14 are of configurations, and have no step.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from composer.keys import ObjectKey, build_key, parse_key
from composer.page_hash import scope_name
from tests.machine_model import Held


class Accounts:
    """Checks one stack of a world between steps."""

    def __init__(self, world: Any):
        self.world, self.stack, self.model = world, world.stack, world.model
        self.released: list[Held] = []  # while they were loaded
        self._linked: dict[str, dict] = {"device": {}, "host": {}}
        self._keys: dict[tuple[str, bytes], list[str]] = {}
        self._turn = 0

    def check(self) -> None:
        """Every invariant."""
        tiers = self.stack.cache.tiers
        self.released = [held for held in self.released if not held.load.ended]
        idle = not self.world.jobs.jobs
        for residency in (tiers.device, tiers.host):
            self._check_pages(residency)
            self._check_checkpoints(residency)
            self._check_chain(residency)
            self._check_holders(residency, exact=idle)
        self._check_reach()
        self._check_device_slots()
        self._check_host_slots(idle=idle)
        self._check_ledger()
        self._check_keys()
        self._check_failures()
        self._check_bytes()

    def _check_pages(self, residency) -> None:
        """A page is there in all spaces that keep every page, behind the page it continues."""
        for space in residency.page_spaces:
            assert residency.residents[space].keys() == residency.pages.keys()
        for page_hash, page in residency.pages.items():
            assert page_hash == page.page_hash
            salt, path = self.model.names[page_hash]
            assert page.scope == scope_name(salt, None)
            if len(path) > 1:
                assert self.model.names[page.parent] == (salt, path[:-1]), "a wrong ancestor"

    def _check_checkpoints(self, residency) -> None:
        """A checkpoint keeps just what its boundary needs, all of which is here."""
        for page_hash, checkpoint in residency.checkpoints.items():
            salt, path = self.model.names[page_hash]
            assert checkpoint.scope == scope_name(salt, None)
            assert checkpoint.holds.keys() == residency.trailing.keys()
            for space, held in checkpoint.holds.items():
                needed = [(salt, path[: n + 1]) for n in self.model.needed(space, len(path))]
                assert [self.model.names[one] for one in held] == needed
                assert all(one in residency.residents[space] for one in held), "half a checkpoint"

    def _check_chain(self, residency) -> None:
        """A page that had its ancestor here never loses it while it stays."""
        pages, before = residency.pages, self._linked[residency.tier]
        linked = {one: page for one, page in pages.items() if page.parent in pages}
        torn = [one for one, page in before.items() if pages.get(one) is page and one not in linked]
        assert not torn, f"{residency.tier}: {len(torn)} pages lost their ancestor"
        self._linked[residency.tier] = linked

    def _check_holders(self, residency, *, exact: bool) -> None:
        """Whoever keeps a page or a trailing slot is a checkpoint, a live lease or a job."""
        leases = [held for held in self.world.leases if residency.tier == "device"]
        if residency.page_spaces:
            locks = Counter(h for held in leases for h in self._pinned(held))
            found = {one: page.locks for one, page in residency.pages.items() if page.locks}
            _check_counts(locks, found, exact=exact)
        for space in residency.trailing:
            keepers = Counter(h for c in residency.checkpoints.values() for h in c.holds[space])
            found = {one: slot.keepers for one, slot in residency.residents[space].items()}
            assert found == {one: keepers[one] for one in found}, "keepers are no checkpoints"
            for held in leases:
                keepers.update(self._pinned(held, space))
            found = {one: slot.holders for one, slot in residency.residents[space].items()}
            assert all(found.values()), "a trailing slot that nobody keeps"
            _check_counts(keepers, found, exact=exact)

    def _pinned(self, held: Held, space: str | None = None) -> set[bytes]:
        """What a live lease has to keep in the device tier; None: of the chain's pages."""
        if held.failed:
            return set()
        if space is None:
            space = self.stack.cache.tiers.device.page_spaces[0]
        if not held.load.ended:
            return held.known[space]
        return {held.hashes[n] for n in self.model.needed(space, len(held.hashes))}

    def _check_reach(self) -> None:
        """A page is useful where a boundary at it or behind it is in either tier."""
        tiers = self.stack.cache.tiers
        if tiers.reach is None:
            return
        both = (tiers.device, tiers.host)
        parents = {h: page.parent for tier in both for h, page in tier.pages.items()}
        useful: set[bytes] = set()
        for checkpoint in [h for tier in both for h in tier.checkpoints]:
            at = checkpoint
            while at in parents and at not in useful:
                useful.add(at)
                at = parents[at]
        assert {h for h in parents if tiers.reach.useful(h)} == useful

    def _check_device_slots(self) -> None:
        """A slot is free, or has one owner: a resident, a caller, a lease or a load under way."""
        owners = [h for h in (*self.world.leases, *self.released) if not h.failed]
        for space, free_list in self.stack.device.spaces.items():
            residents = self.stack.cache.tiers.device.residents[space]
            used = [one.slot for one in residents.values()]
            for slots in self.world.slots:
                used += slots.pages.get(space, [])
                used += [state[space] for state in slots.states if space in state]
            for held in owners:
                pages = [held.hashes[n] for n in self.model.needed(space, len(held.hashes))]
                for page, slot in zip(pages, held.slots(space), strict=True):
                    if page not in residents or residents[page].slot != slot:
                        used.append(slot)
            assert len(set(used)) == len(used), f"{space}: a device slot has two owners"
            assert free_list.num_free == free_list.num_slots - len(used), f"{space}: leaked"
            free_list.check(used)

    def _check_host_slots(self, *, idle: bool) -> None:
        """The same; a slot may also wait for a fetch, a backup, or a call that was given up."""
        cache, in_flight = self.stack.cache, 0
        for space, free_list in self.stack.group.spaces.items():
            used = {one.slot for one in cache.tiers.host.residents[space].values()}
            assert len(used) == len(cache.tiers.host.residents[space]), "two owners"
            num_free, num_slots = free_list.num_free, free_list.num_slots  # lets go of ended calls
            num_held = sum(free_list.is_held(n) for n in range(num_slots) if n not in used)
            left = num_slots - len(used) - num_free - num_held
            assert left >= 0
            in_flight += left
            free_list.check(sorted(used))
        coming = cache.prefetcher._coming
        unread = [one.slots for fetch in coming for part in fetch._parts for one in part.values()]
        assert in_flight == cache.writer.ledger.num_coming + sum(map(len, unread))
        assert not (idle and in_flight), f"{in_flight} host slots leaked"
        assert not (idle and coming), "a fetch that nobody runs"
        held = Counter()
        for fetch in coming:
            held.update({space: len(hashes) for space, hashes in fetch.hashes.items()})
        assert +held == +cache.prefetcher._num_held

    def _check_ledger(self) -> None:
        """What counts as written the store took; what counts as saved was seen there."""
        ledger, host = self.stack.cache.writer.ledger, self.stack.cache.tiers.host
        store = self.world.store
        for space, page_hash in (*ledger.unwritten, *ledger._unproven):
            assert page_hash in host.residents[space], "an account of what is not here"
        assert ledger.num_unsaved >= 0
        for space, residents in host.residents.items():
            for page_hash in residents:
                slot = (space, page_hash)
                if ledger.lacks(slot):
                    continue
                is_proven = slot not in ledger._unproven
                known = store.seen if is_proven else store.taken | store.seen
                assert known.issuperset(self.keys(*slot)), f"saved: {is_proven}, and it is not"

    def keys(self, space: str, page_hash: bytes) -> list[str]:
        """Keys of the objects that a slot must have in storage."""
        slot = (space, page_hash)
        if slot not in self._keys:
            scope = scope_name(self.model.names[page_hash][0], None)
            self._keys[slot] = [
                build_key(ObjectKey(a.namespace, scope, a.name, a.shard, page_hash))
                for a in self.stack.plan.spaces[space].arenas
                if a.required
            ]
        return self._keys[slot]

    def _check_keys(self) -> None:
        """Nobody asks for pages of one tenant under the name of another."""
        asked, self.world.store.asked = self.world.store.asked, set()
        for key in map(parse_key, asked):
            assert key.scope == scope_name(self.model.names[key.page_hash][0], None)

    def _check_failures(self) -> None:
        counters, raised = self.stack.controller.counters.snapshot(), self.world.weather.raised
        for name in ("exists", "put", "get"):
            assert counters.get(f"backend_failed.{name}", 0) == raised[name]
        assert not counters.get("prefetch_failed")
        assert not counters.get("jobs_failed")

    def _check_bytes(self) -> None:
        """One resident of each tier, another one after each step."""
        self._turn += 1
        tiers, engine = self.stack.cache.tiers, self.world.engine
        for tier, verify in ((tiers.device, engine.verify), (tiers.host, engine.verify_host)):
            spaces = list(tier.residents)
            space = spaces[self._turn % len(spaces)]
            residents = list(tier.residents[space])
            if residents:
                page_hash = residents[self._turn % len(residents)]
                one = tier.residents[space][page_hash]
                verify(space, one.slot, page_hash, self.optional if one.degraded else ())

    def check_all_bytes(self) -> None:
        """Every resident of both tiers."""
        tiers, engine = self.stack.cache.tiers, self.world.engine
        for tier, verify in ((tiers.device, engine.verify), (tiers.host, engine.verify_host)):
            for space, residents in tier.residents.items():
                for page_hash, one in residents.items():
                    verify(space, one.slot, page_hash, self.optional if one.degraded else ())

    @property
    def optional(self) -> list[str]:
        return [pool.name for pool in self.stack.plan.spec.pools if not pool.required]

    def room(self, space: str) -> int:
        """Device slots of a space that are free or that nobody is using, counted one by one."""
        device = self.stack.cache.tiers.device
        free = self.stack.device.spaces[space].num_free
        if space in device.trailing:
            keepers = Counter(h for c in device.checkpoints.values() for h in c.holds[space])
            residents = device.residents[space]
            return free + sum(one.holders == keepers[h] for h, one in residents.items())
        kept: set[bytes] = set()
        for page in device.pages.values():
            above = page if page.locks else None
            while above is not None:  # what a page in use continues has to stay as well
                kept.add(above.page_hash)
                above = device.pages.get(above.parent)
        return free + len(device.pages) - len(kept)


def _check_counts(expected: Counter, found: Mapping[bytes, int], *, exact: bool) -> None:
    if exact:
        assert dict(expected) == dict(found), "locks that nobody accounts for"
    else:
        assert all(found.get(one, 0) >= number for one, number in expected.items())
