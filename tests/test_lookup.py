"""Which prefix is found, by whom, and at what cost."""

import pytest

from composer.reading.lookup import Prompt
from tests.engine import PAGE, Engine, longest_by_hand, open_stack, present_by_hand, prompt
from tests.faults import Faulty, Kept


@pytest.fixture
def backend():
    return Faulty()


def served(schema, pages, backend, **settings):
    """A stack that has served so many pages, and has nothing of them left above storage."""
    stack = open_stack(schema, backend=backend, **settings)
    engine = Engine(stack)
    engine.serve(prompt(*range(pages)))
    forget(stack)
    return stack, engine


def forget(stack):
    stack.cache.tiers.device.clear(None)
    stack.cache.tiers.host.clear(None)


def remove(stack, space, tokens, pages):
    """Take pages of one index space out of storage."""
    hashes = stack.match(tokens).prompt.hashes
    objects = stack.controller._objects[space]
    stack.backend.remove([k for one in objects for k in one.keys("-", [hashes[p] for p in pages])])


def num_free(stack):
    tiers = stack.cache.tiers
    return {t.tier: [t.num_free(s) for s in tiers.spaces] for t in (tiers.device, tiers.host)}


class TestBoundary:
    def test_a6_a_page_without_its_state_is_no_hit(self, backend):
        stack = open_stack("kv+state", units=(12, 12), backend=backend)
        Engine(stack).serve(prompt(*range(16)), states_at=[])
        assert stack.match(prompt(*range(16))).num_pages == 0
        other = open_stack("kv", units=(12, 12), backend=Faulty())
        Engine(other).serve(prompt(*range(16)), states_at=[])
        assert other.match(prompt(*range(16))).num_pages == 16

    def test_invariant_3_a7_one_joint_boundary_and_deeper_survivors_are_ignored(self, backend):
        """KV 0-7 are there, KV 8-15 are not; states are at 4 and at 16."""
        tokens = prompt(*range(16))
        stack = open_stack("kv+state", units=(12, 12), backend=backend)
        Engine(stack).serve(tokens, states_at=[4 * PAGE, 16 * PAGE])
        forget(stack)
        remove(stack, "kv", tokens, range(8, 16))
        match = stack.match(tokens)
        assert match.num_pages == 4
        assert match.shortened_by == "state"

    def test_invariant_3_a9_the_window_is_asked_again_at_the_final_boundary(self, backend):
        """The window of 3 pages is there before 16; the KV ends at 14, where it is not."""
        tokens = prompt(*range(16))
        stack = open_stack("kv+window", units=(12, 12), backend=backend)
        Engine(stack).serve(tokens, states_at=[16 * PAGE])
        forget(stack)
        assert stack.match(tokens).num_pages == 16
        remove(stack, "kv", tokens, [14])
        assert stack.match(tokens).num_pages == 0

    def test_a9_an_earlier_window_serves(self, backend):
        tokens = prompt(*range(16))
        stack = open_stack("kv+window", units=(12, 12), backend=backend)
        Engine(stack).serve(tokens, states_at=[8 * PAGE, 16 * PAGE])
        forget(stack)
        remove(stack, "kv", tokens, [14])
        assert stack.match(tokens).num_pages == 8

    def test_a11_a_state_behind_the_first_prompt_makes_its_continuation_a_hit(self, backend):
        stack = open_stack("kv+state", units=(12, 12), backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(*range(8)), states_at=[8 * PAGE])
        engine.serve(prompt(*range(12)), states_at=[12 * PAGE])
        forget(stack)
        assert engine.serve(prompt(*range(12))).num_pages == 12

    def test_d6_an_anchor_without_buffers_counts_its_pages(self, backend):
        stack, engine = served("index only", 6, backend)
        assert engine.serve(prompt(*range(6))).hit_tokens == {
            "device": 0,
            "host": 0,
            "storage": 6 * PAGE,
        }
        assert stack.match(prompt(90)).num_pages == 0

    def test_a_prefix_may_lie_in_three_tiers(self, backend):
        """The head in storage, then some in the host, the tail in the device."""
        stack, _ = served("kv", 6, backend)
        engine = Engine(stack)
        with stack.restore(stack.match(prompt(0, 1, 2, 3))):
            pass
        stack.cache.tiers.device.clear(None)
        with stack.restore(stack.match(prompt(0, 1))):
            pass
        match = stack.match(prompt(*range(6)))
        assert match.hit_tokens == {"device": 2 * PAGE, "host": 2 * PAGE, "storage": 2 * PAGE}
        assert engine.serve(prompt(*range(6))).num_pages == 6

    def test_the_limit_is_rounded_down_to_a_page(self, backend):
        stack, _ = served("kv", 4, backend)
        tokens = prompt(*range(4))
        lengths = [stack.match(tokens, max_tokens=n).num_pages for n in (-1, 0, 3, 4, 15, 16, 99)]
        assert lengths == [0, 0, 0, 1, 3, 4, 4]

    @pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
    def test_less_than_a_page_is_never_cached(self, backend, tokens):
        stack = open_stack("kv+window+state", backend=backend)
        engine = Engine(stack)
        engine.serve(tokens)
        assert engine.serve(tokens).num_pages == 0
        assert backend.keys() == []

    def test_invariant_3_a_match_is_what_looking_by_hand_finds(self, backend):
        stack, _ = served("kv+window+state", 9, backend)
        tokens = prompt(*range(9))
        for space, pages in (("swa", [8]), ("state", [5]), ("swa", [4]), ("kv", [3])):
            remove(stack, space, tokens, pages)
            match = stack.match(tokens)
            by_hand = longest_by_hand(stack, present_by_hand(stack, match), match.limit)
            assert match.num_pages == by_hand


class TestCost:
    def test_g3_one_call_asks_and_one_per_index_space_reads(self, backend):
        tokens = prompt(*range(64))
        stack = open_stack("kv+window+state", units=(40, 40), backend=backend)
        engine = Engine(stack)
        engine.serve(tokens, states_at=[64 * PAGE])
        forget(stack)
        backend.calls.clear()
        match = stack.match(tokens)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)
        assert lease.num_pages == 64
        assert backend.calls == {"exists": 1, "get": 3}

    def test_what_is_here_is_not_asked_for(self, backend):
        stack, engine = served("kv", 4, backend)
        engine.serve(prompt(*range(4)))
        backend.calls.clear()
        stack.match(prompt(*range(4)))
        stack.cache.tiers.device.clear(None)
        stack.match(prompt(*range(4)))
        assert backend.calls == {}
        backend.keys_asked.clear()
        stack.match(prompt(*range(6)))
        assert len(backend.keys_asked) == 2

    def test_g7_a_miss_takes_no_page_anywhere(self, backend):
        stack = open_stack("kv+window+state", backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(*range(8)))
        free, before = num_free(stack), stack.counters()
        for first in range(200):
            with stack.restore(stack.match(prompt(5000 + first, 1, 2))) as lease:
                assert lease.num_pages == 0
        after = stack.counters()
        assert {n: c for n, c in after.items() if n.startswith("evicted")} == {
            n: c for n, c in before.items() if n.startswith("evicted")
        }
        assert num_free(stack) == free
        assert backend.calls["get"] == 0


class TestTenants:
    def test_invariant_9_b8_one_tenant_never_learns_of_another(self, backend):
        stack = open_stack("kv+state", backend=backend)
        engine, tokens = Engine(stack), prompt(1, 2, 3)
        engine.serve(tokens, salt="a")
        for tier in (None, "device", "host"):
            if tier:
                getattr(stack.cache.tiers, tier).clear(None)
            assert stack.match(tokens, salt="b").num_pages == 0
            assert stack.match(tokens).num_pages == 0
            assert stack.match(tokens, salt="").num_pages == 0
            assert stack.match(tokens, extra_key="a").num_pages == 0
            assert stack.match(tokens, salt="a").num_pages == 3
        assert engine.serve(tokens, salt="b").num_pages == 0
        assert backend.calls["get"] == 0

    def test_b8_without_a_salt_both_hit(self, backend):
        stack = open_stack("kv+state", backend=backend)
        engine = Engine(stack)
        engine.serve(prompt(1, 2, 3))
        assert engine.serve(prompt(1, 2, 3)).num_pages == 3

    def test_invariant_9_parts_are_framed(self):
        one = Prompt.of([1] * 4, PAGE, "ab", "c")
        other = Prompt.of([1] * 4, PAGE, "a", "bc")
        assert one.scope != other.scope
        assert one.hashes != other.hashes

    def test_clearing_a_tenant_leaves_the_others(self, backend):
        stack = open_stack("kv+state", backend=backend)
        engine, tokens = Engine(stack), prompt(1, 2, 3)
        engine.serve(tokens, salt="a")
        engine.serve(tokens, salt="b")
        cleared = stack.clear(stack.match(tokens, salt="a").prompt.scope)
        assert cleared["storage_left"] == 0
        assert stack.match(tokens, salt="a").num_pages == 0
        assert stack.match(tokens, salt="b").num_pages == 3


class TestIdentity:
    @pytest.mark.parametrize("field", ["revision", "quantization"])
    def test_invariant_8_b1_other_weights_miss_and_the_old_ones_hit_again(self, backend, field):
        tokens, found = prompt(*range(4)), []
        for value in ("r1", "r2", "r1"):
            inner = backend.inner
            stack = open_stack("kv", backend=Kept(inner), model={"name": "test/t", field: value})
            found.append(Engine(stack).serve(tokens).num_pages)
            stack.close()
        assert found == [0, 0, 4]
