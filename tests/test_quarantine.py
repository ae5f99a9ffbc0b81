"""A call that was given up may still touch its memory: nobody gets that memory before it ends."""

import gc
import weakref
from concurrent.futures import Future

import numpy as np
import pytest

from composer.free_list import FreeList
from composer.storage import CallTimeoutError, TransferError
from tests.engine import Engine, check_accounts, free_slots, open_stack
from tests.faults import Faulty

TOKENS = list(range(100, 116))  # four pages


class Late:
    """A fault: the call is given up at once, and goes on until ``end``."""

    def __init__(self):
        self.ended: Future = Future()
        self.given_up: list = []

    def __call__(self, name, call, argument):
        self.given_up.append((name, argument))
        raise CallTimeoutError("no answer", self.ended)

    def end(self):
        self.ended.set_result(None)


def test_held_ids_are_handed_out_again_only_after_unhold():
    ids = FreeList("test", 4)
    taken = ids.allocate(3)
    ids.hold(taken[:2])
    ids.hold(taken[:1])
    ids.free(taken)

    assert ids.num_free == 2
    assert ids.allocate(3) is None
    ids.unhold(taken[:2])
    assert ids.num_free == 3
    assert ids.is_held(taken[0])
    ids.unhold(taken[:1])
    assert sorted(ids.allocate(4)) == [0, 1, 2, 3]


def test_many_ids_are_kept_back_as_few_are():
    ids = FreeList("test", 100)
    taken = ids.allocate(60)
    ids.hold(taken[:40])
    ids.free(taken)
    assert ids.num_free == 60

    again = ids.allocate(60)
    assert not {*again} & {*taken[:40]}
    ids.free(again)
    ids.unhold(taken[:40])
    assert ids.num_free == 100


@pytest.fixture
def backend():
    return Faulty()


@pytest.mark.parametrize("schema", ["kv+indexer", "kv+window+state", "kv+draft"])
def test_slots_of_a_late_get_are_free_after_it_ends_and_not_before(schema, backend):
    with open_stack(schema, backend=backend) as stack:
        engine = Engine(stack)
        engine.serve(TOKENS)
        stack.publish()
        stack.cache.tiers.device.clear(None)
        stack.cache.tiers.host.clear(None)
        before = {space: set(ids) for space, ids in free_slots(stack, "host").items()}
        backend.fault, backend.where = Late(), ("get",)

        served = engine.serve(TOKENS)

        assert served.num_pages == 0
        assert stack.counters()["backend_late.get"] >= 1
        held = {
            space: {one for one in ids if stack.group.spaces[space].is_held(one)}
            for space, ids in before.items()
        }
        assert any(held.values())
        taken = stack.group.reserve({n: s.num_free for n, s in stack.group.spaces.items()})
        assert all(not held[space] & set(ids) for space, ids in taken.items())
        stack.group.release(taken)
        backend.fault.end()
        check_accounts(stack)


def test_a_page_whose_put_is_late_is_not_written_and_keeps_its_slot_after_eviction(backend):
    with open_stack("kv", backend=backend) as stack:
        backend.fault, backend.where = late, _ = Late(), ("put",)
        Engine(stack).serve(TOKENS)

        assert stack.publish().pages_saved == 0
        addresses = [argument.addresses for _, argument in late.given_up]
        stack.cache.tiers.host.clear(None)
        space = stack.group.spaces["kv"]
        assert space.num_free == space.num_slots - len(np.unique(np.concatenate(addresses)))
        late.end()
        assert space.num_free == space.num_slots


def test_the_memory_of_a_closed_stack_stays_until_a_late_call_ends(backend):
    stack = open_stack("kv", backend=backend)
    backend.fault, backend.where = late, _ = Late(), ("put",)
    Engine(stack).serve(TOKENS)
    stack.close()
    memory = weakref.ref(stack.group)
    del stack
    gc.collect()

    assert memory() is not None
    late.end()
    backend.fault = late = None
    gc.collect()
    assert memory() is None


def test_a_store_that_moves_nothing_is_still_asked_what_it_has(backend):
    def no_transfer(name, call, argument):
        raise TransferError("the holder is gone")

    with open_stack("kv", backend=backend) as stack:
        guard = stack.controller.guard
        guard.transfer_breaker.pause_s = guard.breaker.pause_s = 60.0
        backend.fault, backend.where = no_transfer, ("put",)
        Engine(stack).serve(TOKENS)
        for _ in range(5):
            stack.publish()

        assert backend.calls["put"] == 3
        assert stack.counters()["backend_spared.put"] >= 1
        assert "backend_spared.exists" not in stack.counters()
