"""The prefix cache as a plain dictionary, and what must hold of a stack after every step."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from composer.lease import Lease, Slots
from composer.lookup import Match
from composer.stack import Stack
from tests.engine import PAGE

Path = tuple[int, ...]  # pages of a prompt, by number
Name = tuple[str | None, Path]  # whose prefix it is; what is kept of its last page
STATE = "state"
ALL = "all"


@dataclass
class Model:
    """What was ever committed, by tenant and prefix.

    Attributes:
        rules: Index space -> ALL, STATE, or the tokens of its window.
        ever: Index space -> prefixes whose last page (or state behind it) was committed.
        certain: While nothing can have been lost: a hit is then exactly the ideal one.
    """

    rules: Mapping[str, str | int]
    ever: dict[str, set[Name]] = field(init=False)
    names: dict[bytes, Name] = field(default_factory=dict)
    certain: bool = True

    def __post_init__(self) -> None:
        self.ever = {space: set() for space in self.rules}

    def name(self, salt: str | None, path: Path, hashes: Sequence[bytes]) -> None:
        """A hash means one prefix of one tenant, and a prefix has one hash."""
        assert len(hashes) == len(path)
        for page, page_hash in enumerate(hashes):
            name = (salt, path[: page + 1])
            assert self.names.setdefault(page_hash, name) == name, "two prefixes share a hash"

    def needed(self, space: str, length: int) -> range:
        """Pages that a space must have for a prefix of so many pages."""
        rule = self.rules[space]
        if rule == ALL or not length:
            return range(length)
        if rule == STATE:
            return range(length - 1, length)
        return range(max(length * PAGE - int(rule), 0) // PAGE, length)

    def holds(self, salt: str | None, path: Path, length: int) -> bool:
        """Whether all that a prefix of this length needs was once committed."""
        return all(
            (salt, path[: page + 1]) in self.ever[space]
            for space in self.rules
            for page in self.needed(space, length)
        )

    def ideal(self, salt: str | None, path: Path, limit: int) -> int:
        """The longest prefix that a cache which loses nothing restores."""
        return max(n for n in range(min(limit, len(path)) + 1) if self.holds(salt, path, n))

    def commit(self, salt: str | None, path: Path, start: int, boundaries: Iterable[int]) -> None:
        """Pages from ``start`` on, and what trails at the boundaries that were kept."""
        for space, rule in self.rules.items():
            if rule == ALL:
                pages = set(range(start, len(path)))
            else:
                pages = {page for end in boundaries for page in self.needed(space, end)}
            self.ever[space] |= {(salt, path[: page + 1]) for page in pages}

    def forget(self, salts: Iterable[str | None]) -> None:
        """Nothing of these tenants is left anywhere."""
        for space, names in self.ever.items():
            self.ever[space] = {name for name in names if name[0] not in salts}


@dataclass(eq=False)
class Held:
    """A lease, and the prefix it is of."""

    match: Match
    lease: Lease

    @property
    def hashes(self) -> list[bytes]:
        return self.match.prompt.hashes[: self.lease.num_pages]


class Accounts:
    """Checks a stack from outside, between steps.

    Attributes:
        leases: Those that are live.
        slots: Device slots that the caller owns.
    """

    def __init__(self, stack: Stack, model: Model, leases: list[Held], slots: list[Slots]):
        self.stack, self.model, self.leases, self.slots = stack, model, leases, slots
        self._linked: dict[str, dict] = {"device": {}, "host": {}}

    def check(self, num_jobs: int) -> None:
        """Every invariant, while so many jobs wait to be run."""
        tiers = self.stack.cache.tiers
        for residency in (tiers.device, tiers.host):
            self._check_pages(residency)
            self._check_checkpoints(residency)
            self._check_chain(residency)
            self._check_holders(residency, exact=not num_jobs)
        self._check_device_slots()
        self._check_host_slots(num_jobs)
        self._check_leases()
        self._check_ledger()

    def _check_pages(self, residency) -> None:
        for space in residency.page_spaces:
            assert residency.residents[space].keys() == residency.pages.keys()
        for page_hash, page in residency.pages.items():
            assert page_hash == page.page_hash
            salt, path = self.model.names[page_hash]
            if len(path) > 1:
                assert self.model.names[page.parent] == (salt, path[:-1]), "a wrong ancestor"

    def _check_checkpoints(self, residency) -> None:
        """A checkpoint keeps just what its boundary needs, all of which is here."""
        for page_hash, checkpoint in residency.checkpoints.items():
            salt, path = self.model.names[page_hash]
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
        leases = self.leases if residency.tier == "device" else []
        if residency.page_spaces:
            locks = Counter(one for held in leases for one in held.hashes)
            found = {one: page.locks for one, page in residency.pages.items() if page.locks}
            _check_counts(locks, found, exact=exact)
        for space in residency.trailing:
            keepers = Counter(h for c in residency.checkpoints.values() for h in c.holds[space])
            for held in leases:
                keepers.update(held.hashes[n] for n in self.model.needed(space, len(held.hashes)))
            found = {one: slot.holders for one, slot in residency.residents[space].items()}
            assert all(found.values()), "a trailing slot that nobody keeps"
            _check_counts(keepers, found, exact=exact)

    def _check_device_slots(self) -> None:
        stack = self.stack
        for space, free_list in stack.device.spaces.items():
            used = [one.slot for one in stack.cache.tiers.device.residents[space].values()]
            for slots in self.slots:
                used += slots.pages.get(space, [])
                used += [state[space] for state in slots.states if space in state]
            assert len(set(used)) == len(used), f"{space}: a device slot has two owners"
            assert free_list.num_free == free_list.num_slots - len(used), f"{space}: leaked"
            free_list.check(used)

    def _check_host_slots(self, num_jobs: int) -> None:
        stack, in_flight = self.stack, 0
        for space, free_list in stack.group.spaces.items():
            used = {one.slot for one in stack.cache.tiers.host.residents[space].values()}
            assert len(used) == len(stack.cache.tiers.host.residents[space]), "two owners"
            num_free, num_slots = free_list.num_free, free_list.num_slots  # lets go of ended calls
            num_held = sum(free_list.is_held(n) for n in range(num_slots) if n not in used)
            left = num_slots - len(used) - num_free - num_held
            assert left >= 0
            in_flight += left
            free_list.check(sorted(used))
        assert in_flight == stack.cache.writer.ledger.num_coming
        assert num_jobs or not in_flight, f"{in_flight} host slots leaked"

    def _check_leases(self) -> None:
        """What a lease was given stays where it is."""
        for held in self.leases:
            for space, rule in self.model.rules.items():
                pages = [held.hashes[n] for n in self.model.needed(space, len(held.hashes))]
                residents = self.stack.cache.tiers.device.residents[space]
                if rule == STATE:
                    given = [held.lease.states[space]] if held.hashes else []
                else:
                    given = held.lease.pages[space]
                assert given == [residents[one].slot for one in pages]

    def _check_ledger(self) -> None:
        ledger, host = self.stack.cache.writer.ledger, self.stack.cache.tiers.host
        for space, page_hash in (*ledger.unwritten, *ledger._unproven):
            assert page_hash in host.residents[space], "an account of what is not here"
        assert ledger.num_unsaved >= 0


def _check_counts(expected: Counter, found: Mapping[bytes, int], *, exact: bool) -> None:
    if exact:
        assert dict(expected) == dict(found), "locks that nobody accounts for"
    else:
        assert all(found.get(one, 0) >= number for one, number in expected.items())


def room(accounts: Accounts, space: str) -> int:
    """Device slots of a space that are free or that nobody is using, counted one by one."""
    device = accounts.stack.cache.tiers.device
    free = accounts.stack.device.spaces[space].num_free
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
