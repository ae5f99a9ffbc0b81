"""A stack under a machine's hands: what requests do to it."""

from hypothesis.stateful import RuleBasedStateMachine

from composer import compose
from composer.counters import METRICS
from composer.errors import LoadError
from composer.reading.lookup import Prompt
from composer.schema import PrefetchPolicy, WritePolicy
from tests.engine import (
    PAGE,
    POISON,
    Engine,
    longest_by_hand,
    present_by_hand,
    prompt,
)
from tests.machine_accounts import Accounts
from tests.machine_cases import BRANCHES, Case, configured
from tests.machine_model import STATE, Held, Model
from tests.machine_store import Jobs, Store, Weather

MOST_LIVE = 3
LOST = (  # counters of what may be in no tier any more
    "backups_without_room",
    "backups_put_off",
    "backups_lost",
    "slots_lost",
)
assert METRICS.keys() >= set(LOST), "renamed?"
THINNED = "checkpoints_thinned_out"


class Requests(RuleBasedStateMachine):
    """A stack, a store that outlives it, and the model of both."""

    name: str
    case: Case
    steps: list[int]  # of each story

    def __init__(self):
        super().__init__()
        self.steps.append(0)
        self.jobs, self.weather = Jobs(), Weather()
        self.store = Store(self.weather)
        self.model = Model(self.case.rules)
        self.leases: list[Held] = []
        self.slots: list = []
        self.fetches: list = []
        self.matches: list = []
        self.calm_only = self.lossy = False
        self.bad_copies = 0
        self.stack = None

    def open(self):
        config = configured(self.name, self.units, self.policy)
        self.stack = compose(config, backend=self.store, executor=self.jobs, poison=True)
        guard = self.stack.controller.guard
        guard.breaker.pause_s = guard.transfer_breaker.pause_s = 0  # tests do not wait
        self.weather.raised.clear()
        self._break_copies(self.stack.controller.transfer)
        self.engine = Engine(self.stack)
        self.accounts = Accounts(self)
        self.has_states = STATE in self.case.rules.values()
        plan = self.stack.plan
        assert plan.host_bytes <= plan.host_budget_bytes
        assert plan.device_bytes <= plan.device_budget_bytes
        for space, one in plan.spaces.items():
            assert self.stack.group.spaces[space].num_slots == one.num_host_slots
            assert self.stack.device.spaces[space].num_slots == one.num_device_slots

    def _break_copies(self, transfer):
        """Copies to the device fail while they are told to."""
        true_call = transfer.on_stream

        def on_stream(*, to_host):
            if self.bad_copies and not to_host:
                self.bad_copies -= 1
                raise CopyError
            return true_call(to_host=to_host)

        transfer.on_stream = on_stream

    @property
    def patient(self):
        """Whether a restore waits for all that storage has."""
        waits = self.stack.config.policy.prefetch
        return waits is PrefetchPolicy.wait_complete

    # matches

    def best_known(self, salt):
        return max(BRANCHES, key=lambda path: self.model.ideal(salt, path, len(path)))

    def make_known(self, salt):
        path = self.best_known(salt)
        if not self.model.ideal(salt, path, len(path)):
            self.serve(path, salt, 0, keep=False)
        return path

    def begin(self, what, path, salt, match=None):
        """Reach for a prompt; unless it is a plain restore, in the background."""
        match, wait = match or self.find(path, salt), what == "restore"
        if what == "fetch":
            self.fetch(match, path, salt)
            return
        self.restore(match, salt, path, keep=not wait, fresh=False, wait=wait)

    def cool_down(self, cold):
        """Time goes by: what is under way gets on, and the tiers down to this one are emptied."""
        if cold is not None:
            with self.jobs.at_once():
                self.stack.publish()
            for tier in ("device", "host") if cold == "host" else ("device",):
                self.evict(tier)

    def find(self, path, salt, limit=None, tail=1):
        """Match, and compare with what the dictionary and the tiers hold."""
        before = self.weather.num_meddled
        match = self.stack.match(prompt(*path, tail=tail), salt, max_tokens=limit)
        self.model.name(salt, path, match.prompt.hashes)
        most = len(path) if limit is None else min(len(path), limit // PAGE)
        assert match.limit == most
        self.check_match(match, salt, path, meddled=self.weather.num_meddled > before)
        return match

    def check_match(self, match, salt, path, *, meddled):
        ideal = self.model.ideal(salt, path, match.limit)
        assert match.num_pages <= ideal
        assert self.model.holds(salt, path, match.num_pages)
        assert match.num_tokens == match.num_pages * PAGE == sum(match.hit_tokens.values())
        if self.weather.kind == "calm" and not meddled:
            assert match.num_pages == self._longest(match)
            if self.is_certain() and not self.stack.config.policy.prefetch_min_tokens:
                assert match.num_pages == ideal

    def _longest(self, match):
        """The longest prefix by the definition, with the part that is too short to be fetched."""
        least, stack = self.stack.config.policy.prefetch_min_tokens // PAGE, self.stack
        above = longest_by_hand(stack, present_by_hand(stack, match, storage=False), match.limit)
        full = longest_by_hand(stack, present_by_hand(stack, match), match.limit)
        if match.limit - above < least:
            return above
        anchor = stack.cache.tiers.spaces[0]
        here = present_by_hand(stack, match, storage=False)[anchor][:full]
        if here and stack.plan.spaces[anchor].window_pages is not None:
            here = [here[-1]] * full  # without pages a prefix counts where its state is
        return above if 0 < here.count(False) < least else full

    def is_certain(self):
        """Whether nothing that was ever committed can have been lost."""
        counters = self.stack.counters()
        lost = [n for name, n in counters.items() if name.split(".")[0] in (*LOST, THINNED)]
        self.model.certain &= not any(lost)
        self.model.certain &= not len(self.stack.cache.writer._losses.again)
        if self.policy["name"] is not WritePolicy.write_through:  # then the device may be alone
            dropped = [n for name, n in counters.items() if name.startswith("evicted.device.")]
            self.model.certain &= not any(dropped)
        return self.model.certain

    # leases

    def lease(self, match, *, wait):
        """A lease; None where a copy failed that somebody waited for."""
        try:
            return self.stack.restore(match, wait=wait)
        except CopyError:
            assert wait
            return None

    def restore(self, match, salt, path, *, keep, fresh, wait=True):
        before, cut = self.weather.num_meddled, self._num_cut()
        lease = self.lease(match, wait=wait)
        if lease is None:
            return
        assert lease.num_pages <= match.num_pages
        assert self.model.holds(salt, path, lease.num_pages)
        assert lease.num_tokens == lease.num_pages * PAGE == sum(lease.hit_tokens.values())
        calm = self.weather.is_calm and self.weather.num_meddled == before
        late = lease.shortened_by == "prefetch_late"
        assert not (late and self.patient)
        if calm and fresh and not late and self._num_cut() == cut:
            assert lease.num_pages == match.num_pages
        if calm and self.is_certain():
            assert not lease.degraded
        held = Held(match, lease)
        held.known = self._known(held)
        self.leases.append(held)
        if wait:
            self.verify(held)
        if not keep or len(self.leases) > MOST_LIVE:
            self.release(self.leases[-1 if not keep else 0])

    def _known(self, held):
        """What of a lease is in the device tier already, by index space."""
        known = {}
        for space, residents in self.stack.cache.tiers.device.residents.items():
            pages = [held.hashes[n] for n in self.model.needed(space, len(held.hashes))]
            given = zip(pages, held.slots(space), strict=True)
            known[space] = {h for h, n in given if h in residents and residents[h].slot == n}
        return known

    def _num_cut(self):
        counters = self.stack.controller.counters.snapshot()
        return sum(number for name, number in counters.items() if name.startswith("shortened."))

    def verify(self, held, layer=None):
        """What is waited for is there, and all that its reader needs, whatever has happened."""
        try:
            held.lease.wait(layer)
        except LoadError:
            assert held.failed
            return
        assert not held.failed
        reads = None if layer is None else {layer, self.case.producers.get(layer, layer)}
        self.engine.verify_lease(held.match, held.lease, reads)

    def release(self, held, *, wait=True):
        if wait:
            self.verify(held)
        self.leases.remove(held)
        self.accounts.released.append(held)
        held.lease.release()
        held.lease.release()

    # fetches

    def fetch(self, match, path, salt):
        fetch = self.stack.prefetch(match)
        assert fetch.num_pages <= match.num_pages
        assert self.model.holds(salt, path, fetch.num_pages)
        if len(self.fetches) == MOST_LIVE:
            self.end_fetch(self.fetches[0], cancel=False)
        self.fetches.append(fetch)
        return fetch

    def end_fetch(self, fetch, *, cancel):
        """What is fetched is in the host tier, unless it was given up or storage lost it.

        Of a window the host tier keeps all or nothing, so that a part of it alone, where the device
        tier has the rest, is let go again.
        """
        self.fetches.remove(fetch)
        host = self.stack.cache.tiers.host
        whole = all(
            fetch.hashes.get(space, set()) | host.residents[space].keys() >= set(wanted)
            for space, wanted in fetch._plan.wanted.items()
            if space in host.trailing
        )
        given_up = fetch.ended or not fetch._parts or not whole
        if cancel:
            fetch.cancel()
        before = self.weather.num_meddled
        assert fetch.wait()
        assert fetch.ended
        if cancel or given_up or self.weather.num_meddled > before:
            return False
        arrived = all(result.ok.all() for result in fetch.results)
        for space, hashes in fetch.hashes.items() if arrived else ():
            assert hashes <= host.residents[space].keys(), "what was read is not here"
        return arrived

    # slots

    def serve(self, path, salt, tail, *, keep):
        """Restore what is known and compute the rest, as an engine does."""
        match = self.find(path, salt, tail=tail)
        lease = self.lease(match, wait=True)
        if lease is None:
            return
        with lease:
            self.engine.verify_lease(match, lease)
            assert self.model.holds(salt, path, lease.num_pages)
            at = [n // PAGE for n in self.stack.checkpoints(match, lease.num_tokens)]
            self.commit(path, salt, lease.num_pages, tail, at, keep=keep)

    def commit(self, path, salt, start, tail, at, *, keep):
        tokens = prompt(*path, tail=tail)
        made = Prompt.of(tokens, PAGE, salt)
        self.model.name(salt, path, made.hashes)
        slots = self.allocate(len(path) + bool(tail) - start, len(at) if self.has_states else 0)
        if slots is None:
            return
        states = self._compute(slots, made.hashes, start, at)
        committed = self.stack.commit(tokens, slots, states, salt, start=start * PAGE)
        kept = [end for end in at if end * PAGE not in committed.incomplete]
        thins = self.policy.get("checkpoints_per_branch") is not None
        assert committed.num_checkpoints <= len(kept)
        assert committed.num_checkpoints == len(kept) or thins
        assert committed.num_pages <= len(path) - start
        for end in at:  # what the caller brought along is complete
            if all(min(self._window(s, end), default=start) >= start for s in self.case.rules):
                assert end in kept
        self.model.commit(salt, path, start, kept)
        self.keep_some(slots, keep=keep)

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

    def _window(self, space, end):
        return self.model.needed(space, end) if isinstance(self.case.rules[space], int) else ()

    def allocate(self, num_pages, num_states):
        spaces = self.stack.plan.spaces
        counts = {n: num_states if one.is_state else num_pages for n, one in spaces.items()}
        rooms = {space: self.accounts.room(space) for space in spaces}
        slots = self.stack.allocate(num_pages, num_states)
        possible = all(rooms[space] >= count for space, count in counts.items())
        assert (slots is not None) == possible, "room that is there is given, and no other"
        return slots

    def keep_some(self, slots, *, keep):
        """An engine keeps what the cache did not take until its request ends, with its stamp."""
        for _, cell, _ in self._cells(slots):
            cell.fill_(POISON)
        self.slots.append(slots)
        if not keep or len(self.slots) > MOST_LIVE:
            self.give_up(self.slots[-1 if not keep else 0])

    def give_up(self, slots):
        """Nobody writes to slots that a caller owns."""
        assert all(bool((cell == POISON).all()) for _, cell, _ in self._cells(slots))
        self.slots.remove(slots)
        slots.release()
        slots.release()

    def _cells(self, slots):
        owned = [(space, slot) for space, ids in slots.pages.items() for slot in ids]
        owned += [item for state in slots.states for item in state.items()]
        return [cell for space, slot in owned for cell in self.engine.cells(space, slot)]

    def evict(self, tier):
        """Whatever is not in use has to go."""
        tiers = self.stack.cache.tiers
        with tiers.lock:
            getattr(tiers, tier).clear(None)

    # what happens while somebody waits for the store

    def meanwhile_device(self, _index, _path):
        self.evict("device")

    def meanwhile_host(self, _index, _path):
        self.evict("host")

    def meanwhile_job(self, index, _path):
        self.jobs.step_at(index)

    def meanwhile_end(self, index, _path):
        if self.leases:
            self.release(self.leases[index % len(self.leases)], wait=bool(index % 2))

    def meanwhile_take(self, index, _path):
        slots = self.allocate(index % 9, 0)
        if slots is not None:
            self.keep_some(slots, keep=False)

    def meanwhile_fetch(self, _index, path):
        self.fetch(self.find(path, None), path, None)

    def meanwhile_cancel(self, index, _path):
        if self.fetches:
            self.fetches[index % len(self.fetches)].cancel()

    def meanwhile_serve(self, _index, path):
        self.serve(path, None, 0, keep=False)


class CopyError(Exception):
    """A copy that was made to fail."""
