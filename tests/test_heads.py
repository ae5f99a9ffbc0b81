"""A prefix that is hot above storage outlives what streams past it, and a restart."""

from __future__ import annotations

import pytest

from composer.backends.file import FileBackend
from composer.writing.ledger import Ledger
from tests.engine import Engine, open_stack, prompt
from tests.faults import Faulty

CAPACITY = 48  # pages, each with its window and state; the host tier holds fewer


@pytest.mark.parametrize("schema", ["kv+indexer", "kv+state", "kv+window+state"])
def test_ten_capacities_past_a_device_hot_prefix_then_a_restart(tmp_path, schema):
    hot = prompt(*range(1, 9))
    with open_stack(schema) as probe:
        arenas = probe.plan.arenas
        page_bytes = sum(arena.object_bytes for arena in arenas)

    def opened():
        sizes = {"max_bytes": str(CAPACITY * page_bytes), "min_free_bytes": "0"}
        backend = FileBackend(FileBackend.Params(path=str(tmp_path), **sizes))
        return open_stack(schema, (16, 8), backend=backend, policy={"refresh_s": 0.0})

    with opened() as stack:
        engine = Engine(stack)
        engine.serve(hot)
        for first in range(1000, 1000 + 10 * (10 * CAPACITY // 4), 10):  # of four pages each
            engine.serve(prompt(*range(first, first + 4)))
            assert engine.serve(hot).hit_tokens["device"] == len(hot)
        stack.publish()
        assert len(stack.backend.keys()) < stack.counters()["objects_written"] / 4

    with opened() as stack:
        engine = Engine(stack)
        served = engine.serve(hot)
        assert (served.num_pages, served.hit_tokens["storage"]) == (8, len(hot))
        assert engine.num_verified > 0


class Small(Faulty):
    """Keeps the objects that were written last, so many of them."""

    most = 10

    def put(self, objects):
        taken = super().put(objects)
        self.remove(self.keys()[: -self.most])
        return taken


@pytest.mark.parametrize("schema", ["kv+indexer", "kv+window+state"])
def test_a_store_smaller_than_the_host_keeps_the_hot_head_and_is_not_written_for_ever(schema):
    """Four times its size is written from one publish to the next, ten seconds later."""
    now, store = [0.0], Small()
    policy = {"renew_pages": 4, "refresh_s": 0.0}
    with open_stack(schema, (16, 128), backend=store, policy=policy) as stack:
        writer, engine = stack.cache.writer, Engine(stack)
        writer.ledger._clock = writer._heads._clock = lambda: now[0]
        hot = prompt(1, 2, 3, 4)
        for _ in range(2):
            engine.serve(hot)
        head = [one.hex() for one in stack.match(hot).prompt.hashes]
        for step in range(200):
            engine.serve(prompt(*range(100 + 10 * step, 104 + 10 * step)))
            if step % 10:
                continue
            now[0] += 10
            engine.serve(hot)
            unsaved = stack.publish().pages_unsaved
            assert unsaved >= writer.ledger.num_resting
            assert set(head) <= {key.rsplit("/", 1)[-1] for key in store.keys("") if "/kv/" in key}
        once = 4 * step * sum(len(one.arenas) for one in stack.plan.spaces.values())
        assert stack.counters()["objects_written"] < 2.5 * once
        assert writer.ledger.num_resting > 50


def test_what_storage_loses_once_is_written_again_at_once_and_then_rests_ever_longer():
    now, slot = [0.0], ("kv", b"page")
    ledger = Ledger(10.0, lambda: now[0])
    ledger.expect("kv", [b"page"], "-")
    written = []
    for now[0] in range(0, 2000, 5):
        ledger.wake()
        if slot in ledger.unwritten:
            written.append(now[0])
            ledger.wrote("kv", [b"page"], [False])
        if slot in ledger.to_ask():
            ledger.asked(slot, seen=False)
        assert ledger.num_unsaved == 1
    assert written == [0, 5, 65, 185, 425, 905, 1865]
    ledger.lose([slot], "-")  # it is wanted now
    assert slot in ledger.unwritten
    ledger.wrote("kv", [b"page"], [True])
    assert (ledger.num_unsaved, ledger.num_saved) == (0, 1)
