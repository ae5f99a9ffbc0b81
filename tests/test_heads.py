"""A prefix that is hot above storage outlives what streams past it, and a restart."""

from __future__ import annotations

import pytest

from composer.backends.file import FileBackend
from tests.engine import Engine, open_stack, prompt

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
