"""A stack under a machine's hands: one helper per thing that can be done to it."""

from collections import Counter

from hypothesis.stateful import RuleBasedStateMachine, invariant

from composer import compose
from composer.lookup import Prompt
from tests.engine import PAGE, Engine, longest_by_hand, present_by_hand, prompt
from tests.machine_cases import Case, configured
from tests.machine_model import STATE, Accounts, Held, Model, room
from tests.machine_store import Jobs, Store, Weather

MOST_LIVE = 3


class World(RuleBasedStateMachine):
    """A stack, a store that outlives it, and the model of both."""

    name: str
    case: Case
    steps: Counter[str]  # of all stories

    def __init__(self):
        super().__init__()
        self.jobs, self.weather = Jobs(), Weather()
        self.store = Store(self.weather)
        self.model = Model(self.case.rules)
        self.leases: list[Held] = []
        self.slots: list = []
        self.matches: list = []
        self.calm_only = self.lossy = False
        self.stack = None

    def _open(self):
        self.stack = compose(
            configured(self.name, self.units, self.write, self.eviction),
            backend=self.store,
            executor=self.jobs,
            poison=True,
        )
        guard = self.stack.controller.guard
        guard.breaker.pause_s = guard.transfer_breaker.pause_s = 0  # tests do not wait
        self.engine = Engine(self.stack)
        self.accounts = Accounts(self.stack, self.model, self.leases, self.slots)
        self.has_states = STATE in self.case.rules.values()

    def _check_match(self, match, salt, path, *, meddled):
        ideal = self.model.ideal(salt, path, match.limit)
        assert match.num_pages <= ideal
        assert self.model.holds(salt, path, match.num_pages)
        assert match.num_tokens == match.num_pages * PAGE == sum(match.hit_tokens.values())
        if self.weather.kind == "calm" and not meddled:
            present = present_by_hand(self.stack, match)
            assert match.num_pages == longest_by_hand(self.stack, present, match.limit)
            if self._is_certain():
                assert match.num_pages == ideal

    def _is_certain(self):
        """Whether nothing that was ever committed can have been lost."""
        counters = self.stack.counters()
        lost = ("backups_without_room", "backups_lost_pages", "backups_given_up", "slots_lost")
        self.model.certain &= not any(counters.get(name) for name in lost)
        if self.write != "write_through":  # then the device tier may have been the only one
            dropped = [n for name, n in counters.items() if name.startswith("evicted.device.")]
            self.model.certain &= not any(dropped)
        return self.model.certain

    def _restore(self, match, salt, path, *, keep, fresh):
        before, cut = self.weather.num_meddled, self._num_cut()
        lease = self.stack.restore(match)
        self.engine.verify_lease(match, lease)
        assert lease.num_pages <= match.num_pages
        assert self.model.holds(salt, path, lease.num_pages)
        assert lease.num_tokens == lease.num_pages * PAGE == sum(lease.hit_tokens.values())
        calm = self.weather.is_calm and self.weather.num_meddled == before
        if calm and fresh and self._num_cut() == cut:
            assert lease.num_pages == match.num_pages
        if calm and self._is_certain():
            assert not lease.degraded
        self.leases.append(Held(match, lease))
        if not keep or len(self.leases) > MOST_LIVE:
            self._release(self.leases[-1 if not keep else 0])

    def _num_cut(self):
        counters = self.stack.counters()
        return sum(number for name, number in counters.items() if name.startswith("shortened."))

    def _serve(self, path, salt, tail, *, keep):
        """Restore what is known and compute the rest, as an engine does."""
        match = self.stack.match(prompt(*path, tail=tail), salt)
        self.model.name(salt, path, match.prompt.hashes)
        with self.stack.restore(match) as lease:
            self.engine.verify_lease(match, lease)
            assert self.model.holds(salt, path, lease.num_pages)
            at = [n // PAGE for n in self.stack.checkpoints(match, lease.num_tokens)]
            self._commit(path, salt, lease.num_pages, tail, at, keep=keep)

    def _commit(self, path, salt, start, tail, at, *, keep):
        tokens = prompt(*path, tail=tail)
        made = Prompt.of(tokens, PAGE, salt)
        self.model.name(salt, path, made.hashes)
        slots = self._allocate(len(path) + bool(tail) - start, len(at) if self.has_states else 0)
        if slots is None:
            return
        states = self._compute(slots, made.hashes, start, at)
        committed = self.stack.commit(tokens, slots, states, salt, start=start * PAGE)
        kept = [end for end in at if end * PAGE not in committed.incomplete]
        assert committed.num_checkpoints == len(kept)
        assert committed.num_pages <= len(path) - start
        for end in at:  # what the caller brought along is complete
            if all(min(self._window(s, end), default=start) >= start for s in self.case.rules):
                assert end in kept
        self.model.commit(salt, path, start, kept)
        self._keep_some(slots, keep=keep)

    def _compute(self, slots, hashes, start, at):
        for space, ids in slots.pages.items():
            for slot, page in zip(ids, hashes[start:], strict=False):
                self.engine.fill(space, slot, page)
        if not self.has_states:
            return dict.fromkeys(end * PAGE for end in at)
        for end, state in zip(at, slots.states, strict=True):
            for space, slot in state.items():
                self.engine.fill(space, slot, hashes[end - 1])
        return {end * PAGE: state for end, state in zip(at, slots.states, strict=True)}

    def _keep_some(self, slots, *, keep):
        """An engine keeps what the cache did not take until its request ends."""
        self.slots.append(slots)
        if not keep or len(self.slots) > MOST_LIVE:
            self.slots.pop(-1 if not keep else 0).release()

    def _window(self, space, end):
        return self.model.needed(space, end) if isinstance(self.case.rules[space], int) else ()

    def _allocate(self, num_pages, num_states):
        spaces = self.stack.plan.spaces
        counts = {n: num_states if one.is_state else num_pages for n, one in spaces.items()}
        rooms = {space: room(self.accounts, space) for space in spaces}
        slots = self.stack.allocate(num_pages, num_states)
        possible = all(rooms[space] >= count for space, count in counts.items())
        assert (slots is not None) == possible, "room that is there is given, and no other"
        return slots

    def _release(self, held):
        """Until the end a lease has its bytes, whatever has happened."""
        self.engine.verify_lease(held.match, held.lease)
        self.leases.remove(held)
        held.lease.release()
        held.lease.release()

    def _check_saved(self):
        host, stored = self.stack.cache.tiers.host, self.store.keys()
        hashes = {key.rsplit("/", 1)[-1] for key in stored}
        for space in host.residents if not self.lossy else ():
            missing = [h for h in host.residents[space] if h.hex() not in hashes]
            assert not missing, f"saved pages of {space} that are nowhere"

    def _evict(self, tier):
        """Whatever is not in use has to go."""
        tiers = self.stack.cache.tiers
        with tiers.lock:
            getattr(tiers, tier).clear(None)

    def _clear(self, salt):
        with self.jobs.at_once():
            self.stack.clear(salt and Prompt.of([], PAGE, salt).scope)
        if self.leases or self.stack.backend is None or not self.weather.is_calm:
            self.model.certain = False
        else:
            self.model.forget([salt] if salt else [None, "a"])

    def _restart(self):
        """Another process opens the same store; what was held is released after the close."""
        held = [*self.leases], [*self.slots]
        self.leases.clear()
        self.slots.clear()
        self.matches.clear()
        self._is_certain()
        self.model.certain &= self.stack.backend is not None and self.write == "write_through"
        with self.jobs.at_once():
            self.stack.close()
        _release_all(*held)
        self._open()

    def _attach(self, event):
        if event == "another":
            self.store = Store(self.weather)
        with self.jobs.at_once():
            if event == "detach":
                self.stack.detach()
            else:
                self.stack.attach(self.store)
        self.model.certain &= event == "reattach"

    @invariant()
    def everything_is_accounted_for(self):
        self.steps["all"] += 1
        if self.stack is not None:
            self.jobs.check()
            self.accounts.check(len(self.jobs.jobs))

    def teardown(self):
        if self.stack is None:
            return
        _release_all(self.leases, self.slots)
        self.leases.clear()
        self.slots.clear()
        self.weather.kind, self.weather.meanwhile = "calm", None
        with self.jobs.at_once():
            for late in self.weather.late:
                late.end()
            self.stack.publish()
            self.everything_is_accounted_for()
            self._verify_residents()
            self.stack.clear()
            for tier in (self.stack.device, self.stack.group):
                assert all(one.num_free == one.num_slots for one in tier.spaces.values())
            self.stack.close()

    def _verify_residents(self):
        """Every byte in the device tier, of whatever pool, is that of its page."""
        for space, residents in self.stack.cache.tiers.device.residents.items():
            for page_hash, one in residents.items():
                self.engine.verify(space, one.slot, page_hash, ("draft",) if one.degraded else ())


def _release_all(leases, slots):
    for one in (*(held.lease for held in leases), *slots):
        one.release()
