"""Which boundaries keep their windows and states, and what becomes of them."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from composer.backends.memory import MemoryBackend
from composer.config import to_stack_config
from composer.jobs.replay_driver import Driver
from composer.stack import compose
from composer.writing.checkpoints import worth_keeping
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Inline
from tests.test_preset_replay import small
from tests.test_stack_properties import Story


def serve(stack, *pages, **more):
    return Engine(stack).serve(prompt(*pages), **more)


def kept(stack, tier="device"):
    """How many boundaries a tier keeps."""
    return len(getattr(stack.cache.tiers, tier).checkpoints)


class TestWorthKeeping:
    @given(
        st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.integers(0, 40),
        st.none() | st.integers(0, 12),
    )  # fmt: skip
    @example(0, 9, 2, 5, None)
    def test_it_is_the_end_the_branch_and_the_deepest_multiples(
        self, first, length, step, branch, limit
    ):
        possible = [page for page in range(1, length + 1) if page > first]
        first_of_all = [page for page in (length, branch) if page in possible]
        multiples = [page for page in reversed(possible) if page % step == 0]
        wanted = list(dict.fromkeys(first_of_all + multiples))
        found = worth_keeping(first, length, step, branch, limit)
        assert found == sorted(wanted[:limit])

    @pytest.mark.parametrize(
        ("limit", "found"),
        [(None, [2, 4, 5, 6, 8, 9]), (4, [5, 6, 8, 9]), (2, [5, 9]), (1, [9]), (0, [])],
    )
    def test_with_few_slots_the_longest_reuse_comes_first(self, limit, found):
        assert worth_keeping(0, 9, 2, 5, limit) == found

    def test_a_stack_offers_them_in_tokens(self):
        with open_stack("kv+state", units=(16, 16)) as stack:
            serve(stack, *range(5))
            match = stack.match(prompt(0, 1, 2, 3, 4, 55, 56, 57, 58))
            assert stack.checkpoints(match, 2 * PAGE, 3) == [5 * PAGE, 8 * PAGE, 9 * PAGE]


class TestGeneration:
    def test_a11_what_is_generated_is_kept_at_boundaries_too(self):
        """A prompt of 3 pages grows to 9; whoever goes on from there finds nearly all of it."""
        with open_stack("kv+state", units=(16, 16)) as stack:
            for length in range(3, 10):
                serve(stack, *range(length))
            assert serve(stack, *range(9), 77).num_pages == 9
            assert serve(stack, *range(6), 78).num_pages == 6

    @pytest.mark.parametrize("tier", ["device", "host"])
    def test_a_branch_keeps_so_many_boundaries_and_always_its_end(self, tier):
        with open_stack("kv+state", units=(16, 16), policy={"checkpoints_per_branch": 3}) as stack:
            for length in range(1, 10):
                serve(stack, *range(length))
                stack.publish()
                assert kept(stack, tier) <= 3
            assert serve(stack, *range(9), 77).num_pages == 9
            assert stack.counters()["checkpoints_thinned_out"] > 0
            check_accounts(stack)

    def test_the_least_recently_used_inner_boundary_goes(self):
        with open_stack("kv+state", units=(16, 16), policy={"checkpoints_per_branch": 3}) as stack:
            stack.detach()  # storage forgets nothing
            engine = Engine(stack)
            engine.serve(prompt(*range(6)), states_at=[2 * PAGE, 4 * PAGE, 6 * PAGE])
            stack.match(prompt(0, 1, 22))
            engine.serve(prompt(*range(8)), states_at=[8 * PAGE])
            found = [stack.match(prompt(*range(n), 99)).num_pages for n in (2, 4, 6, 8)]
        assert found == [2, 2, 6, 8]

    @pytest.mark.parametrize("schema", ["kv+state", "state"])
    def test_a_branch_point_stays(self, schema):
        with open_stack(schema, units=(16, 16), policy={"checkpoints_per_branch": 1}) as stack:
            stack.detach()
            engine = Engine(stack)
            engine.serve(prompt(0, 1), states_at=[2 * PAGE])
            engine.serve(prompt(0, 1, 2, 3), states_at=[4 * PAGE])
            assert stack.match(prompt(0, 1, 9)).num_pages == 0  # inner, and one child
            engine.serve(prompt(0, 1, 52, 53), states_at=[2 * PAGE, 4 * PAGE])
            engine.serve(prompt(0, 1, 52, 53, 54, 55), states_at=[6 * PAGE])
            found = [stack.match(prompt(0, 1, 52, 53, 54, 55)[: n * PAGE]) for n in (2, 4, 6)]
        assert [match.num_pages for match in found] == [2, 2, 6]

    def test_branch_points_without_pages_are_forgotten_with_their_boundaries(self):
        with open_stack("state", units=(4, 4), policy={"checkpoints_per_branch": 2}) as stack:
            stack.detach()
            for first in range(0, 3000, 10):
                serve(stack, first, first + 1, states_at=[PAGE, 2 * PAGE])
            assert len(stack.cache._commit._thinning._next) < 64 + 2 * 16
            check_accounts(stack)


class TestFewSlots:
    def test_d3_a_prompt_with_more_boundaries_than_states_is_computed_at_once(self):
        with open_stack("kv+state", units=(8, 8)) as stack:
            held = stack.allocate(0, 5)
            driver = Driver(stack)
            tokens = np.arange(16 * PAGE)
            driver.serve(tokens)
            assert driver.tally.unserved == 0
            assert 1 < driver.tally.checkpoints <= 3
            held.release()
            match = stack.match(np.append(tokens, 7))
            assert match.num_pages == 16
            assert stack.match(tokens[: 15 * PAGE]).num_pages == 14

    def test_e7_when_all_states_are_in_use_nothing_is_raised_and_their_holder_is_told(self):
        with open_stack("kv+state", units=(4, 8)) as stack:
            serve(stack, 0, 1, states_at=[2 * PAGE])
            lease = stack.restore(stack.match(prompt(0, 1)))
            three = stack.allocate(0, 3)
            before = stack.counters().get("allocations_without_room", 0)
            assert stack.allocate(1, 1) is None
            assert stack.counters()["allocations_without_room"] == before + 1
            held = stack.explain(prompt(0, 1))["held"]["device"]
            assert held == {"lease": {"kv": 2, "state": 1}, "slots": {"state": 3}}
            lease.release()
            assert stack.allocate(1, 1) is not None
            three.release()
            assert stack.explain(prompt(0, 1))["held"]["device"] == {"slots": {"kv": 1, "state": 1}}

    def test_boundaries_are_not_given_up_for_what_cannot_be_had_anyway(self):
        with open_stack("kv+state", units=(4, 8)) as stack:
            serve(stack, 0, 1, states_at=[2 * PAGE])
            slots = stack.allocate(0, 3)
            assert stack.allocate(1, 2) is None
            assert kept(stack) == 1
            slots.release()


class TestTiers:
    def test_e5_what_the_device_gives_up_the_host_answers_for(self):
        with open_stack("kv+window+state", units=(2, 16)) as stack:
            serve(stack, 0, 1, 2, states_at=[3 * PAGE])
            for other in range(10, 40, 10):
                serve(stack, *range(other, other + 3))
            assert stack.explain(prompt(0, 1, 2))["present"]["device"] == dict.fromkeys(
                ("kv", "swa", "state"), 0
            )
            served = serve(stack, 0, 1, 2)
            assert served.hit_tokens == {"device": 0, "host": 3 * PAGE, "storage": 0}
            counted = stack.counters()
            assert counted["evicted.device.state"] > 0
            assert counted["evicted.host.state"] == 0  # nothing was lost on the way

    def test_e6_a_boundary_inside_a_chain_survives_the_loss_of_later_windows(self):
        with open_stack("kv+window", units=(16, 16)) as stack:
            device = stack.cache.tiers.device
            engine = Engine(stack)
            engine.serve(prompt(*range(24)), states_at=[8 * PAGE, 12 * PAGE, 24 * PAGE])
            with stack.restore(stack.match(prompt(*range(12), 99))):
                room = stack.plan.spaces["swa"].num_device_slots - 3
                slots = device.take({"swa": room})
                assert slots is not None  # all other windows are gone from the device
                device.give_back(slots)
            pages = device.take({"kv": stack.plan.spaces["kv"].num_device_slots - 20})
            device.give_back(pages)
            found = [stack.match(prompt(*range(n), 99)) for n in (8, 12, 23, 24)]
            assert [match.num_pages for match in found] == [8, 12, 12, 24]
            assert engine.serve(prompt(*range(24), 99)).num_pages == 24  # windows from the host

    def test_a_boundary_whose_pages_are_nowhere_is_dropped(self):
        """Without storage, the host tier's pages are the last."""
        with open_stack("kv+state", units=(8, 2)) as stack:
            stack.detach()
            serve(stack, 0, 1, states_at=[2 * PAGE])
            stack.cache.tiers.device.clear(None)
            assert kept(stack, "host") == 1
            pages = stack.cache.tiers.host.take({"kv": 4})
            assert (kept(stack, "host"), stack.cache.tiers.host.num_free("state")) == (0, 2)
            stack.cache.tiers.host.give_back(pages)

    def test_a_boundary_whose_pages_are_in_storage_stays(self):
        with open_stack("kv+state", units=(8, 2)) as stack:
            serve(stack, 0, 1, states_at=[2 * PAGE])
            stack.cache.tiers.device.clear(None)
            stack.cache.tiers.host.give_back(stack.cache.tiers.host.take({"kv": 4}))
            assert kept(stack, "host") == 1
            assert serve(stack, 0, 1).num_pages == 2


@pytest.mark.parametrize("eviction", ["lru", "lfu", "slru", "fifo"])
def test_under_every_policy_no_story_serves_a_wrong_byte_or_leaks(eviction):
    policy = {"eviction": eviction, "checkpoints_per_branch": 2}
    story = Story("kv+window+state", 7, (2, 3), policy=policy)
    story.run(80)
    assert story.engine.num_verified > 0
    story.stack.close()


@pytest.mark.parametrize(
    ("eviction", "goes"), [("fifo", 0), ("lru", 10), ("lfu", 10), ("slru", 10)]
)
def test_the_configured_policy_decides(eviction, goes):
    with open_stack("kv", units=(2, 8), policy={"eviction": eviction}) as stack:
        serve(stack, 0, 1)
        serve(stack, 10, 11)
        serve(stack, 0, 1)
        serve(stack, 20, 21)
        found = stack.explain(prompt(goes, goes + 1))["present"]["device"]
        assert found == {"kv": 0}


@pytest.mark.parametrize("model", ["deepseek_v3_2", "qwen3_next_80b"])
def test_a_lost_draft_pool_shortens_nothing_and_is_seen(model):
    config = to_stack_config(small(model))
    config.draft = True
    backend = MemoryBackend()
    tokens = np.arange(4 * config.page_size)
    with compose(config, backend=backend, executor=Inline(), poison=True) as stack:
        (drafts,) = (arena for arena in stack.plan.arenas if not arena.required)
        Driver(stack).serve(tokens)
        assert stack.publish().pages_unsaved == 0
        removed = [key for key in backend._objects if f"/{drafts.name}/" in key]
        assert len(removed) == 4
        backend.remove(removed)
        for tier in ("device", "host"):
            getattr(stack.cache.tiers, tier).clear(None)
        driver = Driver(stack)
        driver.serve(tokens)
        assert driver.tally.hit_tokens["storage"] == len(tokens)
        assert set(driver.tally.degraded) == {pool.name for pool in drafts.pools}
        assert driver.tally.mismatches == 0
