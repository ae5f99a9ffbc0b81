"""Movement between tiers: all pools of a page together, and every failure an answer."""

import logging

import numpy as np
import pytest

from composer.breaker import Breaker
from composer.errors import InvariantError
from composer.keys import parse_key
from composer.transfer import PoolTransfer
from tests.engine import PAGE, SCHEMAS, Engine, open_stack, prompt
from tests.faults import Faulty, broken, dropped, refused
from tests.test_lookup import forget

PAGES = [bytes([number]) * 32 for number in range(1, 5)]


@pytest.fixture
def backend():
    return Faulty()


def transfer(stack, space="kv", pages=PAGES, **settings):
    """Device and host slots of one index space; the device's hold the right bytes."""
    engine, count = Engine(stack), len(pages)
    device = stack.device.spaces[space].allocate(count)
    host = stack.group.spaces[space].allocate(count)
    for slot, page in zip(device, pages, strict=True):
        engine.fill(space, slot, page)
    return PoolTransfer(space, device, host, pages, **settings)


@pytest.mark.parametrize("schema", ["kv+indexer", "kv+draft", "index only"])
def test_sidecars_follow_the_ids_of_their_source_through_all_tiers(backend, schema):
    with open_stack(schema, backend=backend) as stack:
        one, engine = transfer(stack), Engine(stack)
        stack.controller.backup([one])
        assert stack.controller.write_storage([one])[0].ok.all()
        other = transfer(stack, pages=PAGES)
        for slot in other.device_ids:
            engine.fill("kv", slot, b"poison")
        assert stack.controller.prefetch([other])[0].ok.all()
        stack.controller.load_back([other])
        for slot, page in zip(other.device_ids, PAGES, strict=True):
            engine.verify("kv", slot, page)


def test_a2_one_object_a_page_holds_kv_and_indexer_and_a_state_has_its_own(backend):
    with open_stack("kv+indexer+state", backend=backend) as stack:
        Engine(stack).serve(prompt(1, 2, 3, 4), states_at=[4 * PAGE])
        names = [parse_key(key).object for key in backend.keys("")]
        assert sorted(names) == ["kv"] * 4 + ["state"]
        (page_arena,) = stack.plan.spaces["kv"].arenas
        assert [pool.name for pool in page_arena.pools] == ["kv", "indexer"]


def test_exists_asks_once_for_all_index_spaces(backend):
    with open_stack("kv+window+state", backend=backend) as stack:
        asked = [PoolTransfer(space, page_hashes=PAGES) for space in stack.plan.spaces]
        results = stack.controller.exists(asked)
        assert [one.pool for one in results] == list(stack.plan.spaces)
        assert not any(one.ok.any() for one in results)
        assert backend.calls == {"exists": 1}


def test_nothing_is_asked_for_nothing(backend):
    with open_stack("kv", backend=backend) as stack:
        assert stack.controller.exists([PoolTransfer("kv")])[0].ok.tolist() == []
        assert stack.controller.write_storage([PoolTransfer("kv")])[0].ok.tolist() == []
        assert stack.controller.prefetch([PoolTransfer("kv")])[0].ok.tolist() == []
        assert backend.calls == {}


def test_what_storage_has_is_not_written_again(backend):
    with open_stack("kv", backend=backend) as stack:
        one = transfer(stack)
        stack.controller.backup([one])
        first, second = (stack.controller.write_storage([one])[0] for _ in range(2))
        assert (first.ok.all(), first.seen.any()) == (True, False)
        assert (second.ok.all(), second.seen.all()) == (True, True)
        assert backend.calls["put"] == 1


def test_a_renewal_asks_in_the_same_call_and_says_what_is_gone(backend):
    with open_stack("kv", backend=backend) as stack:
        one = transfer(stack, pages=PAGES[:1])
        stack.controller.backup([one])
        stack.controller.write_storage([one])
        two = transfer(stack, pages=PAGES[1:2])
        stack.controller.backup([two])
        before = PoolTransfer("kv", page_hashes=[PAGES[0], PAGES[3]])
        backend.calls.clear()
        written, renewed = stack.controller.write_storage([two], [before])
        assert (written.ok.tolist(), renewed.ok.tolist()) == ([True], [True, False])
        assert backend.calls == {"exists": 1, "put": 1}


@pytest.mark.parametrize("fault", [broken, dropped])
def test_invariant_7_a_failing_call_is_counted_and_is_a_miss(backend, fault, caplog):
    with open_stack("kv", backend=backend) as stack, caplog.at_level(logging.WARNING):
        one = transfer(stack)
        stack.controller.backup([one])
        backend.fault = fault
        assert not stack.controller.exists([one])[0].ok.any()
        assert not stack.controller.write_storage([one])[0].ok.any()
        assert not stack.controller.prefetch([one])[0].ok.any()
        counted = stack.counters()
        if fault is broken:
            assert counted["backend_failed.get_objects"] == 4
            assert "storage get failed: OSError: get: no route" in caplog.text
        else:
            assert counted["read_refused.missing"] == 4


def test_invariant_7_a_store_that_answers_nothing_is_spared_and_found_again(backend):
    now = [0.0]
    with open_stack("kv", backend=backend) as stack:
        stack.controller.guard.breaker = Breaker(1.0, 4.0, lambda: now[0])
        backend.fault = broken
        tried = []
        for step in range(64):
            now[0] = step / 4
            before = backend.calls["exists"]
            stack.match(prompt(1))
            tried += [now[0]] * (backend.calls["exists"] - before)
        assert tried == [0.0, 0.25, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5]  # pauses 1, 2, 4, 4, 4
        assert stack.counters()["backend_spared.exists"] == 64 - len(tried)
        backend.fault, now[0] = None, 19.5
        before = backend.calls["exists"]
        for _ in range(3):
            stack.match(prompt(1))
        assert backend.calls["exists"] == before + 3


def test_a_store_attached_anew_is_asked_at_once(backend):
    with open_stack("kv", backend=backend) as stack:
        stack.controller.guard.breaker.pause_s = 60.0
        backend.fault = broken
        for _ in range(4):
            stack.match(prompt(1))
        assert backend.calls["exists"] == 3
        other = Faulty()
        stack.attach(other)
        stack.match(prompt(1))
        assert other.calls["exists"] == 1


def test_invariant_9_a_pool_that_is_missing_shows_nothing_of_the_page_before(backend):
    """Its slots held another tenant's page, and the reader is told that it is degraded."""
    with open_stack("kv+draft", units=(1, 1), backend=backend) as stack:
        engine = Engine(stack)
        engine.serve(prompt(1, 2), salt="a")
        drafts = [key for key in backend.keys("") if ":draft/" in key]
        engine.serve(prompt(8, 9), salt="b")
        backend.remove([key for key in backend.keys("") if ":draft/" in key and key not in drafts])
        forget(stack)
        engine.serve(prompt(1, 2), salt="a")
        match = stack.match(prompt(8, 9), salt="b")
        with stack.restore(match) as lease:
            assert (lease.num_pages, lease.degraded) == (2, ("draft",))
            for slot in lease.pages["kv"]:
                found = {pool: cell for pool, cell, _ in engine.cells("kv", slot)}
                assert not found["draft"].any()


def test_invariant_2_a_page_whose_owner_was_refused_is_not_written(backend):
    """Its draft may be there: the owner comes last and vouches for all."""
    with open_stack("kv+draft", backend=backend) as stack:
        one = transfer(stack)
        stack.controller.backup([one])
        backend.fault = lambda *a: (refused if ":draft/" not in a[2].keys[0] else call)(*a)
        backend.where = ("put",)
        assert not stack.controller.write_storage([one])[0].ok.any()
        assert not stack.controller.exists([one])[0].ok.any()
        backend.fault = None
        assert stack.controller.write_storage([one])[0].ok.all()


def call(name, true, argument):
    return true(argument)


def test_invariant_10_bytes_of_plan_memory_and_objects_are_the_same_numbers(backend):
    for schema in SCHEMAS:
        own = Faulty()
        with open_stack(schema, backend=own) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
            plan = stack.plan
            allocated = sum(arena.memory.numel() for arena in stack.group.arenas.values())
            assert allocated == plan.host_bytes <= plan.host_budget_bytes
            tensors = [t for pool in stack.device.tensors.values() for t in pool.values()]
            assert sum(t.nbytes for t in tensors) == plan.device_bytes <= plan.device_budget_bytes
            sizes = {(a.name, a.namespace): a.object_bytes for a in plan.arenas}
            for key, stored in own.inner._objects.items():
                parsed = parse_key(key)
                assert len(stored) == sizes[parsed.object, parsed.namespace]


def test_ids_that_are_not_taken_are_refused_before_anything_moves(backend):
    with open_stack("kv", backend=backend) as stack:
        one = transfer(stack)
        stack.group.spaces["kv"].free(one.host_ids)
        with pytest.raises(InvariantError, match="not taken"):
            stack.controller.backup([one])
        with pytest.raises(InvariantError, match="4 device and 1 host"):
            stack.controller.backup([PoolTransfer("kv", one.device_ids, [0])])


def test_clearing_reports_what_was_leased_and_stays(backend):
    with open_stack("kv", backend=backend) as stack:
        Engine(stack).serve(prompt(1, 2, 3))
        leased = backend.keys()[0]
        backend.remove = lambda keys: np.array([key != leased for key in keys])
        done = stack.clear()
        assert (done["storage_removed"], done["storage_left"]) == (2, 1)


def test_a_store_that_cannot_list_clears_the_tiers_above(backend):
    with open_stack("kv", backend=backend) as stack:
        Engine(stack).serve(prompt(1, 2, 3))
        backend.keys = lambda prefix="": broken("keys", None, None)
        done = stack.clear()
        assert (done["storage_removed"], done["storage_left"]) == (None, None)
        assert (done["device"], done["host"]) == (3, 3)
