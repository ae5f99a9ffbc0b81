"""Any order of events, on every kind of model: no wrong byte, no wrong length, nothing leaks."""

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.engine import PAGE, POISON, prompt
from tests.machine_cases import CASES, EVICTIONS, INDEX, LENGTHS, PATHS, SALTS, TRUNK, UNITS, WRITES
from tests.machine_store import Weather
from tests.machine_world import World

LEAST_STEPS = 20_000  # in all fast stories


class Machine(World):
    """What can happen."""

    @initialize(
        units=UNITS,
        write=WRITES,
        eviction=EVICTIONS,
        calm_only=st.booleans(),
        first=st.lists(PATHS, max_size=3),
    )
    def start(self, units, write, eviction, calm_only, first):
        self.units, self.write, self.eviction = units, write, eviction
        self.calm_only = calm_only
        self._open()
        for path in first:
            self._serve(path, None, tail=0, keep=False)

    # what engines do

    @rule(path=PATHS, salt=SALTS, limit=st.none() | st.integers(0, len(TRUNK) * PAGE))
    def match(self, path, salt, limit):
        before = self.weather.num_meddled
        match = self.stack.match(prompt(*path, tail=1), salt, max_tokens=limit)
        self.model.name(salt, path, match.prompt.hashes)
        self._check_match(match, salt, path, meddled=self.weather.num_meddled > before)
        self.matches = [*self.matches[-2:], (match, salt, path)]

    @rule(path=PATHS, salt=SALTS, keep=st.booleans())
    def restore(self, path, salt, keep):
        before = self.weather.num_meddled
        match = self.stack.match(prompt(*path, tail=1), salt)
        self.model.name(salt, path, match.prompt.hashes)
        fresh = self.weather.num_meddled == before
        self._restore(match, salt, path, keep=keep, fresh=fresh)

    @rule(path=PATHS, salt=SALTS, abort=st.booleans())
    def prefetch(self, path, salt, abort):
        """What is fetched early, or given up on the way, is a hit later, or a miss."""
        match = self.stack.match(prompt(*path, tail=1), salt)
        self.model.name(salt, path, match.prompt.hashes)
        fetch = self.stack.prefetch(match)
        if abort:
            fetch.cancel()
        assert fetch.wait()
        assert self.model.holds(salt, path, fetch.num_pages)

    @precondition(lambda self: self.matches)
    @rule(index=INDEX, keep=st.booleans())
    def restore_an_old_match(self, index, keep):
        match, salt, path = self.matches.pop(index % len(self.matches))
        self._restore(match, salt, path, keep=keep, fresh=False)

    @rule(
        path=PATHS,
        salt=SALTS,
        start=INDEX,
        tail=st.sampled_from([0, 0, 1]),
        at=st.sets(LENGTHS | st.just(99), max_size=3),
        keep=st.booleans(),
    )
    def commit(self, path, salt, start, tail, at, keep):
        """A chunk of a prompt, from any page on, with boundaries anywhere."""
        at = sorted({min(n, len(path)) for n in at})
        self._commit(path, salt, start % (len(path) + 1), tail, at, keep=keep)

    @rule(path=PATHS, salt=SALTS, tail=st.sampled_from([0, 1]), keep=st.booleans())
    def serve(self, path, salt, tail, keep):
        self._serve(path, salt, tail, keep=keep)

    @rule(salt=SALTS, turns=st.sets(LENGTHS, max_size=3))
    def converse(self, salt, turns):
        """Several turns of one conversation, each longer than the one before."""
        for length in sorted(turns):
            self._serve(TRUNK[:length], salt, tail=1, keep=False)
            self.everything_is_accounted_for()

    @rule(num_pages=st.integers(0, 8), num_states=st.integers(0, 2), keep=st.booleans())
    def allocate(self, num_pages, num_states, keep):
        """Slots for a request that will not be cached: something has to go."""
        slots = self._allocate(num_pages, num_states if self.has_states else 0)
        if slots is None:
            return
        owned = [(space, slot) for space, ids in slots.pages.items() for slot in ids]
        owned += [item for state in slots.states for item in state.items()]
        for space, slot in owned:
            for _, cell, _ in self.engine.cells(space, slot):
                cell.fill_(POISON)
        self._keep_some(slots, keep=keep)

    @precondition(lambda self: self.leases or self.slots)
    @rule(index=INDEX)
    def release(self, index):
        index %= len(self.leases) + len(self.slots)
        if index < len(self.leases):
            self._release(self.leases[index])
        else:
            self.slots.pop(index - len(self.leases)).release()

    @rule(path=PATHS, salt=SALTS)
    def explain(self, path, salt):
        told = self.stack.explain(prompt(*path), salt)
        assert told["boundary_pages"] <= self.model.ideal(salt, path, len(path))

    # what workers and operators do

    @precondition(lambda self: self.jobs.jobs)
    @rule(index=INDEX, every=st.booleans())
    def run_jobs(self, index, every):
        self.jobs.step_at(index)
        while every and self.jobs.jobs:
            self.jobs.step_at(index)

    @rule(wait=st.booleans())
    def publish(self, wait):
        if not wait:
            assert self.stack.publish(0).pages_unsaved >= 0
            return
        with self.jobs.at_once():
            meddled = self.weather.num_meddled
            assert self.stack.publish().done
            if self.weather.is_calm and self.stack.backend is not None:
                again = [self.stack.publish().pages_unsaved for _ in range(3)]
                assert again[-1] == 0, "what is in host memory reaches storage"
                if self.weather.num_meddled == meddled:
                    self._check_saved()

    @rule(event=st.sampled_from(["device", "device", "host", "both", "restart", "clear", "all"]))
    def operate(self, event):
        if event in ("device", "host"):
            self._evict(event)
        elif event == "both":
            self._evict("device")
            self._evict("host")
        elif event == "restart":
            self._restart()
        else:
            self._clear(None if event == "all" else "a")

    @rule(what=st.sampled_from(["device", "host", "job", "lease", "slots"]), index=INDEX)
    def something_happens_during_the_next_call(self, what, index):
        def happen():
            if what in ("device", "host"):
                self._evict(what)
            elif what == "job":
                self.jobs.step_at(index)
            elif what == "lease" and self.leases:
                self._release(self.leases[index % len(self.leases)])
            elif what == "slots" and (slots := self.stack.allocate(index % 9, 0)) is not None:
                slots.release()

        self.weather.meanwhile = happen

    # what goes wrong

    @precondition(lambda self: not self.calm_only)
    @rule(kind=st.sampled_from(Weather.KINDS))
    def change_the_weather(self, kind):
        self.weather.kind = kind
        if kind != "calm":
            self.model.certain, self.lossy = False, True

    @precondition(lambda self: not self.weather.is_calm)
    @rule()
    def calm_down(self):
        self.weather.kind = "calm"
        while self.weather.late:
            self.weather.late.pop().end()

    @precondition(lambda self: not self.calm_only)
    @rule(event=st.sampled_from(["lose", "detach", "reattach", "another", "late"]), index=INDEX)
    def change_the_store(self, event, index):
        if event == "lose":
            lost = self.store.lose(index)
            self.model.certain &= not lost
            self.lossy |= lost > 0
        elif event == "late":
            if self.weather.late:
                self.weather.late.pop(index % len(self.weather.late)).end()
        else:
            self._attach(event)


def run(case: str, num_stories: int, num_steps: int = 50, start: str = "", **more) -> int:
    """Tell stories, the same ones for the same ``start``; returns their steps."""
    steps: Counter[str] = Counter()
    machine = type("Machine", (Machine,), {"name": case, "case": CASES[case], "steps": steps})
    fixed = {
        "max_examples": num_stories,
        "stateful_step_count": num_steps,
        "database": None,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
        "phases": [Phase.generate, Phase.shrink],
    }
    told = seed(crc32(f"{case} {start}".encode()))(machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("composer.sender.PATIENCE_S", 0.0)  # nobody works while a rule waits
        run_state_machine_as_test(told, settings=settings(**{**fixed, **more}))
    return steps.total()


@pytest.mark.parametrize("case", CASES)
def test_no_order_of_events_breaks_a_promise(case):
    assert run(case, 56) >= LEAST_STEPS / len(CASES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_no_long_story_breaks_a_promise(case):
    run(case, 150, 80)
