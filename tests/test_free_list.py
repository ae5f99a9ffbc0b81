"""The free list against a plain set."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from composer.errors import InvariantError
from composer.free_list import FreeList

NUM_SLOTS = 60


class FreeListMachine(RuleBasedStateMachine):
    """Ids handed out by ``list`` are those that ``taken`` does not hold."""

    def __init__(self):
        super().__init__()
        self.list, self.taken = FreeList("space", NUM_SLOTS), set()

    @rule(num_ids=st.integers(0, NUM_SLOTS + 2))
    def allocate(self, num_ids):
        ids = self.list.allocate(num_ids)
        if num_ids > NUM_SLOTS - len(self.taken):
            assert ids is None
            return
        assert len(set(ids)) == len(ids) == num_ids
        assert self.taken.isdisjoint(ids)
        assert all(0 <= one < NUM_SLOTS for one in ids)
        self.taken.update(ids)

    @rule(data=st.data(), as_array=st.booleans())
    def free(self, data, as_array):
        ids = sorted(self.taken)
        count = data.draw(st.integers(0, len(ids)))
        ids = data.draw(st.permutations(ids))[:count]
        self.list.free(np.array(ids, dtype=np.int64) if as_array else ids)
        self.taken.difference_update(ids)

    @rule(data=st.data(), wrong=st.sampled_from(["twice", "free", "below", "above"]))
    def free_wrongly(self, data, wrong):
        ids = data.draw(st.permutations(sorted(self.taken)))
        rest = sorted(set(range(NUM_SLOTS)) - self.taken)
        candidates = {"twice": ids, "free": rest, "below": [-1, -NUM_SLOTS], "above": [NUM_SLOTS]}
        if not candidates[wrong]:
            return
        place = data.draw(st.integers(0, len(ids)))
        ids.insert(place, data.draw(st.sampled_from(candidates[wrong])))
        with pytest.raises(InvariantError, match="space"):
            self.list.free(ids)

    @invariant()
    def counts_agree(self):
        assert self.list.num_free == NUM_SLOTS - len(self.taken)

    @invariant()
    def only_taken_ids_pass(self):
        self.list.check(sorted(self.taken))
        for one in set(range(-1, NUM_SLOTS + 1)) - self.taken:
            with pytest.raises(InvariantError):
                self.list.check([one])


TestFreeList = FreeListMachine.TestCase
TestFreeList.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("count", [3, 40])
def test_neighbours_are_handed_out_as_neighbours_again(count):
    slots = FreeList("space", 50)
    ids = slots.allocate(count)
    assert ids == list(range(count))
    slots.free(ids)
    assert slots.allocate(count) == ids


@pytest.mark.parametrize("count", [2, 40])
def test_an_id_freed_before_is_refused_and_named(count):
    slots = FreeList("host kv", 50)
    ids = slots.allocate(count)
    slots.free(ids)
    with pytest.raises(InvariantError, match="host kv: id 0"):
        slots.free(ids)
    assert slots.num_free == 50


def test_a_negative_number_of_ids_is_refused_and_takes_nothing():
    slots = FreeList("host kv", 8)
    with pytest.raises(InvariantError, match="-1 ids"):
        slots.allocate(-1)
    assert slots.allocate(8) == list(range(8))


def test_id_zero_is_an_ordinary_id():
    slots = FreeList("space", 1)
    assert slots.allocate(1) == [0]
    assert slots.allocate(1) is None
    slots.free([0])
    assert slots.allocate(1) == [0]
