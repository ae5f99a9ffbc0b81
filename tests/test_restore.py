"""What a restore promises, and what becomes of it when a tier is full, lost or lying."""

import pytest

from composer.errors import InvariantError
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import (
    Faulty,
    Kept,
    before,
    broken,
    delayed,
    dropped,
    flipped,
    once,
    short,
    swapped,
)
from tests.test_lookup import forget, num_free, remove, served


@pytest.fixture
def backend():
    return Faulty()


def restored(stack, engine, tokens):
    match = stack.match(tokens)
    with stack.restore(match) as lease:
        engine.verify_lease(match, lease)
    return lease


class TestEveryPool:
    @pytest.mark.parametrize("schema", ["kv+state", "kv+indexer+state", "state"])
    def test_a3_a5_every_tensor_of_a_state_and_a_page_comes_back(self, backend, schema):
        """Two prompts with bytes of their own, through each tier; four dtypes in one state."""
        stack = open_stack(schema, units=(16, 16), backend=backend)
        engine = Engine(stack)
        prompts = [prompt(*range(16)), prompt(*range(100, 116))]
        for tokens in prompts:
            engine.serve(tokens, states_at=[16 * PAGE])
        for tier in (stack.cache.tiers.device, stack.cache.tiers.host):
            tier.clear(None)
            stack.cache.tiers.device.clear(None)
            engine.poison_free()
            for tokens in prompts:
                assert restored(stack, engine, tokens).num_pages == 16

    def test_a4_pages_written_without_a_draft_pool_are_degraded_hits(self):
        backend, tokens = Kept(), prompt(1, 2, 3)
        stack = open_stack("kv+draft", backend=backend, draft=False)
        Engine(stack).serve(tokens)
        stack.close()
        stack = open_stack("kv+draft", backend=backend)
        lease = restored(stack, Engine(stack), tokens)
        assert (lease.num_pages, lease.degraded) == (3, ("draft",))
        again = restored(stack, Engine(stack), tokens)
        assert again.degraded == ("draft",)  # from the device too

    def test_a4_pages_written_with_a_draft_pool_are_whole(self, backend):
        stack, engine = served("kv+draft", 3, backend)
        lease = restored(stack, engine, prompt(0, 1, 2))
        assert (lease.num_pages, lease.degraded) == (3, ())

    def test_a8_a_lease_without_a_hit_has_no_state(self, backend):
        stack = open_stack("kv+state", backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(*range(8)), states_at=[])
        lease = restored(stack, engine, prompt(*range(8)))
        assert (lease.num_pages, lease.states, lease.pages["kv"]) == (0, {}, [])


class TestLoss:
    @pytest.mark.parametrize("lost", [[10, 13], [10], [10, 11, 12, 13, 14, 15]])
    def test_f8_pages_lost_after_the_match_shorten_it(self, backend, lost):
        tokens = prompt(*range(16))
        stack, engine = served("kv", 16, backend)
        match = stack.match(tokens)
        assert match.num_pages == 16
        remove(stack, "kv", tokens, lost)
        free = num_free(stack)["host"][0]
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        assert (lease.num_pages, lease.shortened_by) == (10, "kv")
        assert num_free(stack)["host"][0] == free - 10  # slots of 10 to 15 were given back
        check_accounts(stack)

    def test_f8_with_two_index_spaces_a_page_needs_both(self, backend):
        tokens = prompt(*range(8))
        stack, engine = served("kv+extra", 8, backend)
        match = stack.match(tokens)
        remove(stack, "extra", tokens, [5])
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        assert lease.num_pages == 5
        check_accounts(stack)

    @pytest.mark.parametrize(
        ("fault", "hit"),
        [(broken, 0), (dropped, 0), (short, 0), (flipped, 0), (swapped, 0), (delayed(0.01), 4)],
    )
    @pytest.mark.parametrize("schema", ["kv", "kv+window+state"])
    def test_invariants_4_and_7_a_bad_read_is_a_counted_miss(self, backend, fault, hit, schema):
        stack, engine = served(schema, 4, backend)
        backend.fault, backend.where = fault, ("get",)
        lease = restored(stack, engine, prompt(0, 1, 2, 3))
        assert lease.num_pages == hit
        check_accounts(stack)
        counted = [n for n in stack.counters() if n.startswith(("read_refused", "backend_failed"))]
        assert bool(counted) == (hit == 0)
        backend.fault = None
        engine.serve(prompt(0, 1, 2, 3))  # what was wrong was removed, and is written again
        forget(stack)
        assert restored(stack, engine, prompt(0, 1, 2, 3)).num_pages == 4  # without a restart

    def test_f2_the_prefix_before_a_bad_page_is_kept(self, backend):
        stack, engine = served("kv", 4, backend)
        engine.serve(prompt(*range(8)))
        forget(stack)
        with stack.restore(stack.match(prompt(0, 1))):
            pass
        backend.fault, backend.where = once(flipped), ("get",)  # page 2 is read first
        assert restored(stack, engine, prompt(*range(8))).num_pages == 2
        engine.serve(prompt(*range(8)))
        forget(stack)
        assert restored(stack, engine, prompt(*range(8))).num_pages == 8

    def test_f6_f7_another_object_under_a_key_is_a_miss(self, backend):
        stack, engine = served("kv", 2, backend)
        objects = backend.inner._objects
        first, second = backend.keys()
        whole = objects[first]
        objects[first] = whole[: len(whole) // 2]
        assert restored(stack, engine, prompt(0, 1)).num_pages == 0
        objects[first] = objects[second]
        assert restored(stack, engine, prompt(0, 1)).num_pages == 0
        objects[first] = whole
        assert restored(stack, engine, prompt(0, 1)).num_pages == 2

    def test_a_prefix_that_was_evicted_after_the_match_is_no_error(self, backend):
        stack = open_stack("kv+window+state", backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(*range(4)))
        match = stack.match(prompt(*range(4)))
        stack.cache.tiers.device.clear(None)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
            assert (lease.num_pages, lease.hit_tokens["host"]) == (4, 4 * PAGE)
        forget(stack)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
            assert (lease.num_pages, lease.hit_tokens["storage"]) == (4, 4 * PAGE)
        check_accounts(stack)

    def test_a_read_into_memory_that_is_not_registered_is_no_miss(self, backend):
        stack, _ = served("kv", 2, backend)
        backend.inner._memory = type(backend.inner._memory)()
        match = stack.match(prompt(0, 1))
        with pytest.raises(InvariantError, match="registered"):
            stack.restore(match)
        check_accounts(stack)


class TestRoom:
    @pytest.mark.parametrize("schema", ["kv", "kv+window", "kv+state", "kv+window+state"])
    def test_f10_what_the_host_cannot_hold_is_said(self, backend, schema):
        """16 pages are found, 4 fit: loaded and refused are told apart."""
        kept = Kept(backend.inner)
        stack = open_stack(schema, units=(12, 12), backend=kept)
        Engine(stack).serve(prompt(*range(16)), states_at=[n * PAGE for n in range(1, 17)])
        stack.close()
        stack = open_stack(schema, units=(12, 2), backend=kept)
        engine = Engine(stack)
        match = stack.match(prompt(*range(16)))
        assert match.num_pages == 16
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        room = stack.plan.spaces["kv"].num_host_slots
        assert 0 < lease.num_pages <= room < 16
        assert lease.shortened_by == "host_capacity"
        check_accounts(stack)

    def test_what_the_device_cannot_hold_is_said(self, backend):
        stack = open_stack("kv", units=(2, 12), backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(*range(16)))
        with stack.restore(stack.match(prompt(*range(16)))) as lease:
            assert lease.num_pages == 4
            assert lease.shortened_by == "device_capacity"
        check_accounts(stack)

    def test_invariant_2_without_room_for_one_pool_nothing_is_taken(self, backend):
        """All states are leased: the pages of another prefix are not brought in alone."""
        stack = open_stack("kv+state", units=(2, 8), backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(*range(4)))
        held = stack.allocate(0, stack.plan.spaces["state"].num_device_slots)
        free = num_free(stack)["device"]
        with stack.restore(stack.match(prompt(*range(4)))) as lease:
            assert lease.num_pages == 0
        assert num_free(stack)["device"][1] == free[1] == 0
        held.release()
        check_accounts(stack)

    @pytest.mark.parametrize("schema", ["state", "kv+state", "kv+window"])
    def test_what_was_restored_stays_in_the_device_after_its_lease(self, backend, schema):
        stack, engine = served(schema, 4, backend)
        tokens = prompt(*range(4))
        restored(stack, engine, tokens)
        stack.cache.tiers.host.clear(None)
        backend.fault = dropped
        lease = restored(stack, engine, tokens)
        assert (lease.num_pages, lease.hit_tokens["device"]) == (4, 4 * PAGE)

    @pytest.mark.parametrize("schema", ["state", "kv+state"])
    def test_what_was_read_stays_in_the_host_when_the_device_has_no_room(self, backend, schema):
        stack, engine = served(schema, 4, backend)
        tokens = prompt(*range(4))
        held = stack.allocate(0, stack.plan.spaces["state"].num_device_slots)
        assert restored(stack, engine, tokens).num_pages == 0
        held.release()
        backend.fault = dropped
        lease = restored(stack, engine, tokens)
        assert (lease.num_pages, lease.hit_tokens["host"]) == (4, 4 * PAGE)

    def test_a_lease_keeps_its_prefix_through_any_pressure(self, backend):
        stack = open_stack("kv+window+state", units=(4, 4), backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(0, 1, 2))
        match = stack.match(prompt(0, 1, 2))
        lease = stack.restore(match)
        for first in range(10, 100, 10):
            engine.serve(prompt(*range(first, first + 6)))
        engine.verify_lease(match, lease)
        lease.release()
        lease.release()
        check_accounts(stack)

    def test_invariant_12_a_restored_state_is_copied_and_never_changed(self, backend):
        stack, engine = served("kv+state", 4, backend)
        match = stack.match(prompt(*range(4)))
        with stack.restore(match) as lease, stack.allocate(0, 1) as slots:
            stack.copy_state(lease.states, slots.states[0])
            engine.verify("state", slots.states[0]["state"], match.prompt.hashes[3])
            engine.fill("state", slots.states[0]["state"], b"what the request computes")
            engine.verify_lease(match, lease)

    def test_a_read_may_race_with_another_of_the_same_pages(self, backend):
        """While the first reads, a second restore brings the same prefix in."""
        stack, engine = served("kv+window+state", 6, backend)
        tokens, inner = prompt(*range(6)), []

        def again():
            backend.fault = None
            inner.append(restored(stack, engine, tokens))

        backend.fault, backend.where = before(again), ("get",)
        match = stack.match(tokens)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        assert (lease.num_pages, inner[0].num_pages) == (6, 6)
        check_accounts(stack)

    def test_e2_pages_under_a_slow_read_belong_to_nobody_else(self, backend):
        """Everything else is taken and overwritten while the read is under way."""
        stack, engine = served("kv", 6, backend)
        outcome = []

        def disturb():
            backend.fault = None
            for first in range(100, 200, 10):
                outcome.append(engine.serve(prompt(*range(first, first + 8))).complete)
            engine.poison_free()

        backend.fault, backend.where = before(disturb), ("get",)
        match = stack.match(prompt(*range(6)))
        free = num_free(stack)["host"][0]
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        assert free
        assert all(outcome)
        check_accounts(stack)


class TestInPlace:
    @pytest.mark.parametrize("schema", ["kv", "kv+extra", "kv+window+state", "state"])
    def test_what_the_device_tier_has_is_kept_there_and_nothing_else_is_touched(
        self, backend, schema
    ):
        with open_stack(schema, (16, 16), backend=backend) as stack:
            engine, tokens = Engine(stack), prompt(*range(6))
            engine.serve(tokens, states_at=[6 * PAGE])
            stack.publish()
            backend.calls.clear()
            match, tiers = stack.match(tokens), stack.cache.tiers
            with stack.restore(match) as lease:
                engine.verify_lease(match, lease)
                assert lease.hit_tokens == {"device": 6 * PAGE, "host": 0, "storage": 0}
                assert lease.page_tiers.tolist() == [0] * 6
                assert {page.locks for page in tiers.device.pages.values()} <= {1}
                assert (set(tiers.device.held()), tiers.host.held()) == ({"lease"}, {})
                lease.wait(1)
                with pytest.raises(ValueError, match="no"):
                    lease.wait(99)
            assert not backend.calls
            check_accounts(stack)

    def test_a_lease_that_cannot_be_made_keeps_nothing(self, backend, monkeypatch):
        with open_stack("kv+window+state", (16, 16), backend=backend) as stack:
            tokens = prompt(*range(6))
            Engine(stack).serve(tokens, states_at=[6 * PAGE])
            monkeypatch.setattr("composer.reading.operation.Operation.lease", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                stack.restore(stack.match(tokens))
            check_accounts(stack)
