"""A stack under a machine's hands: what goes wrong around requests, and what operators do."""

from hypothesis.stateful import invariant

from composer.keys import parse_key
from composer.page_hash import scope_name
from composer.schema import WritePolicy
from tests.engine import check_accounts
from tests.machine_requests import Requests
from tests.machine_store import Store


class World(Requests):
    """A stack and its store, in good and bad weather."""

    # what goes wrong

    def change_weather(self, kind):
        self.weather.kind = kind
        if kind != "calm":
            self.model.certain, self.lossy = False, True

    def calm_down(self):
        self.weather.kind = "calm"
        while self.weather.late:
            self.weather.late.pop().end()

    def lose(self, index):
        lost = self.store.lose(index)
        self.model.certain &= not lost
        self.lossy |= lost > 0

    # what operators do

    def check_saved(self):
        host, stored = self.stack.cache.tiers.host, set(self.store.keys())
        for space in host.residents if not self.lossy else ():
            for page_hash in host.residents[space]:
                assert stored.issuperset(self.accounts.keys(space, page_hash)), "saved, and nowhere"

    def clear(self, salt):
        scope, before = salt and scope_name(salt, None), self._stored_outside(salt)
        with self.jobs.at_once():
            self.stack.clear(scope)
        self._all_fetches_ended()
        if self.weather.is_calm:  # else what came back wrong was removed
            assert before <= self._stored_outside(salt), "another tenant's pages are gone"
        if self.stack.backend is not None:
            left = map(parse_key, self.store.keys())
            assert not any(scope in (None, key.scope) for key in left)
        if self.leases or self.stack.backend is None or not self.weather.is_calm:
            self.model.certain = False
            return
        self.model.forget([salt] if salt else [None, "a"])
        tiers = self.stack.cache.tiers
        for tier in (tiers.device, tiers.host):
            entries = (*tier.pages.values(), *tier.checkpoints.values())
            assert not any(scope in (None, one.scope) for one in entries)

    def _stored_outside(self, salt):
        """Keys of the other tenants' objects."""
        scope = scope_name(salt, None)
        stored = self.store.keys() if salt else ()
        return {key for key in stored if parse_key(key).scope != scope}

    def restart(self):
        """Another process opens the same store; what was held is released after the close."""
        held, stack = (self.leases, self.slots), self.stack
        self.matches.clear()
        self.is_certain()
        self.model.certain &= stack.backend is not None
        self.model.certain &= self.policy["name"] is WritePolicy.write_through
        with self.jobs.at_once():
            stack.close()
        self._all_fetches_ended()
        assert all(one.load.ended for one in self.leases)
        _release_all(*held)
        if not self.weather.late:  # calls that were given up keep slots, and what they are in
            check_accounts(stack)
        self.open()

    def attach(self, event):
        if event == "another":
            self.store = Store(self.weather)
        with self.jobs.at_once():
            if event == "detach":
                self.stack.detach()
            else:
                self.stack.attach(self.store)
        self._all_fetches_ended()
        self.model.certain &= event == "reattach"

    def _all_fetches_ended(self):
        """What ends a stack's storage ends what is on its way, and those who wait are told."""
        assert all(fetch.ended and fetch.wait(0) for fetch in self.fetches)
        self.fetches.clear()

    @invariant()
    def everything_is_accounted_for(self):
        self.steps[-1] += 1
        if self.stack is not None:
            if self.weather.errors:
                raise self.weather.errors[0]
            self.jobs.check()
            self.accounts.check()

    def teardown(self):
        if self.stack is None:
            return
        _release_all(self.leases, self.slots)
        self.weather.kind, self.weather.meanwhile = "calm", None
        with self.jobs.at_once():
            for late in self.weather.late:
                late.end()
            self.stack.publish()
            self.everything_is_accounted_for()
            self.accounts.check_all_bytes()
            self.stack.clear()
            for tier in (self.stack.device, self.stack.group):
                assert all(one.num_free == one.num_slots for one in tier.spaces.values())
            self.stack.close()


def _release_all(leases, slots):
    for one in (*(held.lease for held in leases), *slots):
        one.release()
    leases.clear()
    slots.clear()
