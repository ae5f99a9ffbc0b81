"""Reads from storage under each policy: what a restore gets, and what becomes of the rest."""

import threading

import pytest

import composer.reading.fetch_plan
from composer.reading.prefetch import WAITS
from composer.schema import PolicyConfig, PrefetchPolicy
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Stepped, before, broken, dropped, once
from tests.test_lookup import forget, num_free

SCHEMAS = ["kv", "kv+window+state", "kv+extra"]


@pytest.fixture
def backend():
    return Faulty()


@pytest.fixture
def small_parts(monkeypatch):
    """Each page is read by itself."""
    monkeypatch.setattr(composer.reading.fetch_plan, "PART_BYTES", 1)


def stored(schema, num_pages, backend, units=(16, 16), **policy):
    """A stack whose prompt is in storage alone."""
    stack = open_stack(schema, units=units, backend=backend, policy=policy)
    engine = Engine(stack)
    engine.serve(prompt(*range(num_pages)))
    assert stack.publish().pages_unsaved == 0
    forget(stack)
    return stack, engine


def step_through(stack, stepped):
    """From now on jobs run when they are stepped."""
    stack.controller.readers = stepped


class Gate:
    """Calls behind it wait until it is opened, or a few seconds."""

    def __init__(self):
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, name, call, argument):
        self.reached.set()
        self._open.wait(5)
        return call(argument)

    def open(self):
        self._open.set()


class TestBestEffort:
    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_it_waits_for_nothing_and_the_next_finds_what_came_late(self, backend, schema):
        stack, engine = stored(schema, 8, backend, prefetch="best_effort")
        stepped, tokens = Stepped(), prompt(*range(8))
        step_through(stack, stepped)
        with stack.restore(stack.match(tokens)) as lease:
            assert (lease.num_pages, lease.shortened_by) == (0, "prefetch_late")
        stepped.run_all()
        match = stack.match(tokens)
        assert match.hit_tokens == {"device": 0, "host": 8 * PAGE, "storage": 0}
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
            assert lease.num_pages == 8
        check_accounts(stack)

    def test_pages_on_their_way_are_not_read_twice(self, backend):
        stack, _ = stored("kv", 8, backend, prefetch="best_effort")
        stepped, tokens = Stepped(), prompt(*range(8))
        step_through(stack, stepped)
        backend.calls.clear()
        for _ in range(3):
            stack.restore(stack.match(tokens)).release()
        stepped.run_all()
        assert backend.calls["get"] == 1
        check_accounts(stack)


class TestTimeout:
    def test_g7_the_wait_grows_with_the_tokens_up_to_a_limit(self):
        policy = PolicyConfig()
        waits = [WAITS[PrefetchPolicy.timeout](policy, n) for n in (0, 1024, 8192, 1_000_000)]
        assert waits == [1.0, 1.25, 3.0, 30.0]

    @pytest.mark.usefixtures("small_parts")
    def test_what_arrived_in_time_is_served_and_the_rest_is_kept_for_the_next(self, backend):
        policy = {"prefetch": "timeout", "prefetch_timeout_s": 0.3}
        stack = open_stack("kv", units=(16, 16), backend=backend, workers=True, policy=policy)
        with stack:
            engine, tokens, gate = Engine(stack), prompt(*range(8)), Gate()
            engine.serve(tokens)
            stack.publish()
            forget(stack)
            backend.calls.clear()
            backend.where = ("get",)

            def fourth_waits(*call):
                return (gate if backend.calls["get"] == 4 else _true)(*call)

            backend.fault = fourth_waits
            match = stack.match(tokens)
            with stack.restore(match) as lease:
                engine.verify_lease(match, lease)
                assert (lease.num_pages, lease.shortened_by) == (3, "prefetch_late")
            gate.open()
            for fetch in stack.cache.prefetcher.coming(match.prompt.hashes):
                assert fetch.wait(5)
            with stack.restore(stack.match(tokens)) as lease:
                engine.verify_lease(match, lease)
                assert lease.hit_tokens["storage"] == 0
                assert lease.num_pages == 8
            check_accounts(stack)

    def test_invariant_5_slots_are_nobody_elses_until_the_late_read_is_over(self, backend):
        policy = {"prefetch": "timeout", "prefetch_timeout_s": 0.0, "prefetch_timeout_max_s": 0.0}
        stack = open_stack("kv", units=(16, 4), backend=backend, workers=True, policy=policy)
        with stack:
            engine, tokens, gate = Engine(stack), prompt(*range(6)), Gate()
            engine.serve(tokens)
            stack.publish()
            forget(stack)
            backend.fault, backend.where = gate, ("get",)
            with stack.restore(stack.match(tokens)) as lease:
                assert lease.num_pages == 0
            assert gate.reached.wait(5)
            host = stack.cache.tiers.host
            assert host.take({"kv": 3}) is None  # two are free, and six are being read into
            gate.open()
            for fetch in stack.cache.prefetcher.coming(stack.match(tokens).prompt.hashes):
                fetch.wait(5)
            assert stack.match(tokens).hit_tokens["host"] == 6 * PAGE
            check_accounts(stack)


class TestThreshold:
    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_f4_h1_below_the_threshold_nothing_is_promised_and_the_reason_is_told(
        self, backend, schema
    ):
        stack, _ = stored(schema, 3, backend, prefetch_min_tokens=4 * PAGE)
        backend.calls.clear()
        num_before = stack.counters()["prefetch_below_threshold"]
        match = stack.match(prompt(0, 1, 2))
        assert (match.num_pages, match.not_fetched) == (0, f"below threshold {4 * PAGE}")
        assert backend.calls == {}  # a prompt that short cannot reach it
        match = stack.match(prompt(0, 1, 2, 7, 8, 9))
        assert (match.num_pages, match.not_fetched) == (0, f"below threshold {4 * PAGE}")
        assert stack.prefetch(match).num_pages == 0
        assert stack.counters()["prefetch_below_threshold"] == num_before + 2

    def test_f4_from_the_threshold_on_it_is_fetched(self, backend):
        stack, engine = stored("kv", 4, backend, prefetch_min_tokens=4 * PAGE)
        assert stack.match(prompt(0, 1, 2, 3)).not_fetched is None
        assert engine.serve(prompt(0, 1, 2, 3)).num_pages == 4


class TestShare:
    def test_fetches_hold_no_more_than_their_share_of_the_host(self, backend):
        stack, engine = stored("kv", 16, backend, units=(16, 16), prefetch_host_share=0.25)
        tokens = prompt(*range(16))
        match = stack.match(tokens)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
            assert (lease.num_pages, lease.shortened_by) == (8, "prefetch_host_share")
        assert stack.counters()["shortened.prefetch_host_share"] == 1
        with stack.restore(stack.match(tokens)) as lease:
            assert lease.num_pages == 16  # what has arrived is held no more
        check_accounts(stack)

    def test_the_share_is_one_for_all_fetches_together(self, backend):
        stack, _ = stored("kv", 8, backend, units=(16, 16), prefetch_host_share=0.25)
        engine = Engine(stack)
        engine.serve(prompt(*range(50, 56)))
        stack.publish()
        forget(stack)
        stepped = Stepped()
        step_through(stack, stepped)
        first = stack.prefetch(stack.match(prompt(*range(50, 56))))
        second = stack.prefetch(stack.match(prompt(*range(8))))
        assert (first.num_pages, second.num_pages) == (6, 2)
        stepped.run_all()
        check_accounts(stack)


class TestHandle:
    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_what_was_prefetched_is_served_without_a_read(self, backend, schema):
        stack, engine = stored(schema, 8, backend)
        tokens = prompt(*range(8))
        fetch = stack.prefetch(stack.match(tokens))
        assert fetch.wait(0)
        backend.fault = broken
        assert engine.serve(tokens).hit_tokens["host"] == 8 * PAGE
        check_accounts(stack)

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_a_restore_reads_by_itself_what_no_worker_has_begun(self, backend, schema):
        stack, engine = stored(schema, 8, backend)
        stepped, tokens = Stepped(), prompt(*range(8))
        step_through(stack, stepped)
        fetch = stack.prefetch(stack.match(tokens))
        match = stack.match(tokens)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
            assert lease.num_pages == 8
        assert fetch.ended
        stepped.run_all()
        check_accounts(stack)

    @pytest.mark.usefixtures("small_parts")
    @pytest.mark.parametrize("schema", SCHEMAS)
    @pytest.mark.parametrize("after", range(8))
    def test_a_cancelled_fetch_keeps_what_came_and_gives_the_rest_back(
        self, backend, schema, after
    ):
        stack, engine = stored(schema, 8, backend)
        free, stepped, tokens = num_free(stack)["host"], Stepped(), prompt(*range(8))
        step_through(stack, stepped)
        fetch = stack.prefetch(stack.match(tokens))
        backend.calls.clear()

        def cancel():
            if backend.calls["get"] > after:
                fetch.cancel()

        backend.fault, backend.where = before(cancel), ("get",)
        stepped.run_all()
        assert fetch.ended
        check_accounts(stack)
        kept = len(stack.cache.tiers.host.pages)
        assert kept < 8 or schema == "kv+window+state" or after == 7
        stack.cache.tiers.host.clear(None)
        assert num_free(stack)["host"] == free
        backend.fault = None
        assert engine.serve(tokens).num_pages == 8

    @pytest.mark.parametrize("fault", [broken, dropped])
    def test_invariant_7_a_fetch_that_finds_nothing_gives_everything_back(self, backend, fault):
        stack, engine = stored("kv+window+state", 8, backend)
        free, tokens = num_free(stack)["host"], prompt(*range(8))
        backend.fault, backend.where = fault, ("get",)
        assert stack.prefetch(stack.match(tokens)).wait(0)
        assert num_free(stack)["host"] == free
        check_accounts(stack)
        backend.fault = None
        assert engine.serve(tokens).num_pages == 8

    def test_a_fault_of_ours_is_told_to_who_waits_and_gives_everything_back(
        self, backend, monkeypatch
    ):
        stack, _ = stored("kv", 8, backend)
        free = num_free(stack)["host"]
        monkeypatch.setattr(stack.controller, "prefetch", lambda transfers: 1 // 0)
        fetch = stack.prefetch(stack.match(prompt(*range(8))))
        with pytest.raises(ZeroDivisionError):
            fetch.wait()
        assert num_free(stack)["host"] == free
        assert stack.counters()["prefetch_failed"] == 1
        check_accounts(stack)

    def test_g7_a_hundred_misses_take_no_host_page(self, backend, monkeypatch):
        stack, _ = stored("kv", 2, backend)
        taken = []
        monkeypatch.setattr(
            stack.cache.tiers.host, "take", lambda counts: taken.append(dict(counts)) or {}
        )
        for first in range(100, 1100, 10):
            match = stack.match(prompt(*range(first, first + 3)))
            with stack.restore(match) as lease:
                assert lease.num_pages == 0
        assert taken == []

    def test_clearing_and_detaching_end_what_is_on_its_way(self, backend):
        for end in ("clear", "detach", "close"):
            stack, _ = stored("kv", 8, Faulty())
            stepped = Stepped()
            step_through(stack, stepped)
            fetch = stack.prefetch(stack.match(prompt(*range(8))))
            getattr(stack, end)()
            assert fetch.ended
            assert stack.cache.tiers.host.pages == {}
            check_accounts(stack)

    def test_another_store_during_a_restore_is_no_wrong_byte(self, backend):
        stack, engine = stored("kv+window+state", 8, backend)
        tokens = prompt(*range(8))
        match = stack.match(tokens)
        backend.fault = once(before(lambda: stack.attach(Faulty())))
        backend.where = ("get",)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        check_accounts(stack)
        engine.serve(tokens)
        assert stack.publish().pages_unsaved == 0


def _true(name, call, argument):
    return call(argument)
