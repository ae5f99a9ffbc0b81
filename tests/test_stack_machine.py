"""Any order of events, on every kind of model: no wrong byte, no wrong length, nothing leaks."""

from functools import partial
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from composer.reading import fetch_plan
from composer.reading.lookup import Prompt
from tests.engine import PAGE, longest_by_hand, present_by_hand, prompt
from tests.machine_cases import (
    CASES,
    COLD,
    INDEX,
    KNOWN,
    LENGTHS,
    PATHS,
    SALTS,
    TRUNK,
    UNITS,
    policies,
)
from tests.machine_store import Weather
from tests.machine_world import World

LEAST_STEPS = 20_000  # in all fast stories


class Machine(World):
    """What can happen."""

    @initialize(
        units=UNITS,
        policy=policies(),
        weather=st.sampled_from([None, None, "calm", *Weather.KINDS]),
        page_by_page=st.sampled_from([False, False, True]),
        first=st.lists(PATHS, max_size=3),
    )
    def start(self, units, policy, weather, page_by_page, first):
        """In some weather; None: it stays calm to the end."""
        self.units, self.policy, self.calm_only = units, policy, weather is None
        fetch_plan.PART_BYTES = 1 if page_by_page else 1 << 20  # ``run`` puts it back
        self.open()
        for path in first:
            self.serve(path, None, tail=0, keep=False)
        if not self.calm_only:
            self.change_weather(weather)

    # what engines do

    @rule(path=PATHS, salt=SALTS, limit=st.none() | st.integers(0, len(TRUNK) * PAGE))
    def match(self, path, salt, limit):
        match = self.find(path, salt, limit)
        self.matches = [*self.matches[-2:], (match, salt, path)]

    @rule(path=KNOWN, salt=SALTS, cold=COLD, keep=st.booleans(), wait=st.booleans())
    def restore_a_prompt(self, path, salt, cold, keep, wait):
        path = path or self.best_known(salt)
        self.cool_down(cold)
        before = self.weather.num_meddled
        match = self.find(path, salt)
        fresh = self.weather.num_meddled == before
        self.restore(match, salt, path, keep=keep or not wait, fresh=fresh, wait=wait)

    @precondition(lambda self: self.matches)
    @rule(index=INDEX, keep=st.booleans(), wait=st.booleans())
    def restore_an_old_match(self, index, keep, wait):
        match, salt, path = self.matches.pop(index % len(self.matches))
        self.restore(match, salt, path, keep=keep or not wait, fresh=False, wait=wait)

    @precondition(lambda self: self.leases)
    @rule(index=INDEX, layer=st.sampled_from([None, 0, 1, 2]))
    def wait_for_a_layer(self, index, layer):
        first, end = self.stack.plan.spec.stage
        layer = None if layer is None else first + layer % (end - first)
        self.verify(self.leases[index % len(self.leases)], layer)

    @rule(
        path=KNOWN,
        salt=SALTS,
        cold=st.sampled_from([None, "host", "host"]),
        then=st.sampled_from(["keep", "keep", "keep", "wait", "cancel"]),
    )
    def prefetch(self, path, salt, cold, then):
        """What is fetched early is in the host tier by the end; other things happen meanwhile."""
        path = path or self.best_known(salt)
        self.cool_down(cold)
        before = self.weather.num_meddled
        match = self.find(path, salt)
        fetch = self.fetch(match, path, salt)
        if then == "keep":
            return
        arrived = self.end_fetch(fetch, cancel=then == "cancel")
        calm = self.weather.is_calm and self.weather.num_meddled == before
        if arrived and calm:
            here = present_by_hand(self.stack, match, storage=False)
            assert longest_by_hand(self.stack, here, fetch.num_pages) == fetch.num_pages

    @rule(kind=st.sampled_from(["load", "fetch"]), salt=SALTS)
    def begin_something_slow(self, kind, salt):
        """What is known best is on its way up from the next tier."""
        path = self.make_known(salt)
        self.cool_down("device" if kind == "load" else "host")
        self.begin(kind, path, salt)

    @precondition(lambda self: self.fetches)
    @rule(index=INDEX, how=st.sampled_from(["wait", "cancel", "leave"]))
    def end_a_prefetch(self, index, how):
        fetch = self.fetches[index % len(self.fetches)]
        if how == "leave":  # whoever runs it finds nothing to read
            fetch.cancel()
            self.fetches.remove(fetch)
        else:
            self.end_fetch(fetch, cancel=how == "cancel")

    @rule(
        path=PATHS,
        salt=SALTS,
        start=INDEX,
        tail=st.sampled_from([0, 0, 1]),
        at=st.sets(LENGTHS | st.just(99), max_size=3),
        keep=st.booleans(),
    )
    def commit_a_chunk(self, path, salt, start, tail, at, keep):
        """A chunk of a prompt, from any page on, with boundaries anywhere."""
        at = sorted({min(n, len(path)) for n in at})
        self.commit(path, salt, start % (len(path) + 1), tail, at, keep=keep)

    @rule(path=PATHS, salt=SALTS, tail=st.sampled_from([0, 1]), keep=st.booleans())
    def serve_a_prompt(self, path, salt, tail, keep):
        self.serve(path, salt, tail, keep=keep)

    @rule(salt=SALTS, turns=st.sets(LENGTHS, max_size=3))
    def converse(self, salt, turns):
        """Several turns of one conversation, each longer than the one before."""
        for length in sorted(turns):
            self.serve(TRUNK[:length], salt, tail=1, keep=False)
            self.everything_is_accounted_for()

    @rule(num_pages=st.integers(0, 8), num_states=st.integers(0, 2), keep=st.booleans())
    def allocate_slots(self, num_pages, num_states, keep):
        """Slots for a request that will not be cached: something has to go."""
        slots = self.allocate(num_pages, num_states if self.has_states else 0)
        if slots is not None:
            self.keep_some(slots, keep=keep)

    @precondition(lambda self: self.leases or self.slots)
    @rule(index=INDEX, wait=st.booleans())
    def release_one(self, index, wait):
        index %= len(self.leases) + len(self.slots)
        if index < len(self.leases):
            self.release(self.leases[index], wait=wait)
        else:
            self.give_up(self.slots[index - len(self.leases)])

    @rule(path=PATHS, salt=SALTS)
    def explain(self, path, salt):
        tokens = prompt(*path)
        self.model.name(salt, path, Prompt.of(tokens, PAGE, salt).hashes)
        told = self.stack.explain(tokens, salt)
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
                    self.check_saved()

    @rule(event=st.sampled_from(["device", "device", "host", "both", "restart", "clear", "all"]))
    def operate(self, event):
        if event in ("device", "host"):
            self.evict(event)
        elif event == "both":
            self.evict("device")
            self.evict("host")
        elif event == "restart":
            self.restart()
        else:
            self.clear(None if event == "all" else "a")

    @rule(
        what=st.sampled_from(["device", "host", "job", "end", "take", "fetch", "cancel", "serve"]),
        index=INDEX,
        path=PATHS,
    )
    def something_happens_during_the_next_call(self, what, index, path):
        self.weather.meanwhile = partial(getattr(self, f"meanwhile_{what}"), index, path)

    # what goes wrong

    @precondition(lambda self: not self.calm_only)
    @rule(kind=st.sampled_from(Weather.KINDS))
    def the_weather_changes(self, kind):
        self.change_weather(kind)

    @precondition(lambda self: not self.calm_only)
    @rule(
        kind=st.sampled_from([*Weather.BAD_READS, "lossy"]),
        salt=SALTS,
        what=st.sampled_from(["restore", "load", "fetch"]),
        late=st.booleans(),
        then=st.none() | PATHS,
        index=INDEX,
    )
    def reach_for_storage_in_bad_weather(self, kind, salt, what, late, then, index):
        """What only storage has is wanted just when that goes wrong, and then life goes on."""
        self.calm_down()
        path = self.make_known(salt)
        self.cool_down("host")
        match = self.find(path, salt) if late else None
        if kind == "lossy":
            self.lose(index)
        else:
            self.change_weather(kind)
        self.begin(what, path, salt, match)
        if then is not None:
            self.weather.kind = "calm"
            self.serve(then, salt, 0, keep=False)
            self.jobs.run_all()

    @precondition(lambda self: not self.weather.is_calm)
    @rule()
    def the_weather_is_calm_again(self):
        self.calm_down()

    @precondition(lambda self: not self.calm_only)
    @rule(event=st.sampled_from(["lose", "detach", "reattach", "another", "late"]), index=INDEX)
    def change_the_store(self, event, index):
        if event == "lose":
            self.lose(index)
        elif event == "late":
            if self.weather.late:
                self.weather.late.pop(index % len(self.weather.late)).end()
        else:
            self.attach(event)

    @precondition(lambda self: not self.calm_only)
    @rule(number=st.integers(1, 2))
    def copies_will_fail(self, number):
        self.bad_copies = number


AVAILABLE_PROVIDERS["afresh"] = HypothesisProvider  # else most stories are variations of a few


def run(case: str, num_stories: int, num_steps: int = 50, start: str = "", **more) -> int:
    """Tell stories, the same ones for the same ``start``; returns their steps.

    The simplest one comes first and does not count.
    """
    machine = type("Machine", (Machine,), {"name": case, "case": CASES[case], "steps": []})
    fixed = {
        "backend": "afresh",
        "max_examples": num_stories + 1,
        "stateful_step_count": num_steps,
        "database": None,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
        "phases": [Phase.generate, Phase.shrink],
    }
    told = seed(crc32(f"{case} {start}".encode()))(machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("composer.writing.sender.PATIENCE_S", 0.0)  # nobody works while a rule waits
        patch.setattr(fetch_plan, "PART_BYTES", 1)
        run_state_machine_as_test(told, settings=settings(**{**fixed, **more}))
    return sum(machine.steps[1:])


@pytest.mark.parametrize("case", CASES)
def test_no_order_of_events_breaks_a_promise(case):
    assert run(case, 36) >= LEAST_STEPS / len(CASES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_no_long_story_breaks_a_promise(case):
    run(case, 30, 120, start="long")
