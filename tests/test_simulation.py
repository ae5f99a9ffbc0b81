"""What a simulation is made of: names of pages, the ideal, storage, links, and inline jobs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from composer.errors import ConfigError
from composer.page_hash import hash_pages, root_hash
from composer.simulation.inline import InlineExecutor
from composer.simulation.links import Link, Links
from composer.simulation.prompts import Ideal, Naming
from composer.simulation.store import IndexStore
from composer.storage import MISSING, PageObjects
from composer.traces import Request

BLOCK = 24


def prompts(seed, count=60):
    """Prompts that share heads of every length, the last block partial or not."""
    walk, found = random.Random(seed), []
    for _ in range(count):
        other = walk.choice(found).hash_ids if found else ()
        ids = other[: walk.randint(0, 8)] + tuple(walk.choices(range(40), k=walk.randint(0, 4)))
        found.append(Request(ids, max(len(ids) * BLOCK - walk.randint(0, BLOCK - 1), 0), BLOCK))
    return found


@pytest.mark.parametrize("page_size", [1, 8, 24, 48, 72, 10, 36, 500])
def test_pages_are_named_alike_exactly_where_their_tokens_and_all_before_them_are(page_size):
    naming, by_tokens, by_ids = Naming(page_size), [], []
    for request in prompts(1):
        named = naming.prompt(request.hash_ids, request.num_tokens, request.block_tokens)
        hashed = hash_pages(request.tokens(), page_size, root_hash())
        assert (len(named.hashes), named.num_tokens) == (len(hashed), request.num_tokens)
        assert (named.tail is None) == (request.num_tokens % page_size == 0)
        by_ids += named.hashes
        by_tokens += hashed
    assert len(set(zip(by_ids, by_tokens, strict=True))) == len(set(by_ids)) == len(set(by_tokens))
    assert len(set(by_ids)) < len(by_ids) or page_size == 500


def test_the_ideal_is_every_page_that_came_before_behind_the_same_pages():
    requests, ideal, naming = prompts(2, 200), Ideal(), Naming(BLOCK)
    full, partial, hits, partial_hits = set(), set(), 0, 0
    for request in requests:
        ideal.add(naming.prompt(request.hash_ids, request.num_tokens, BLOCK))
        chains = [request.hash_ids[: n + 1] for n in range(len(request.hash_ids))]
        whole = chains[: request.num_tokens // BLOCK]
        hits += sum(one in full for one in whole)
        partial_hits += sum(one in full or one in partial for one in chains)
        full.update(whole)
        partial.update(chains)
    assert (ideal.full.num_hits, ideal.partial.num_hits) == (hits, partial_hits)
    assert ideal.full.num_pages == sum(one.num_tokens // BLOCK for one in requests)
    assert ideal.partial.num_pages == sum(len(one.hash_ids) for one in requests)
    assert 0 < ideal.full.rate < 1


def objects(*keys, size=10):
    return PageObjects(list(keys), np.empty((len(keys), 0), np.int64), np.array([size]))


class TestStore:
    def test_a_put_an_exists_and_a_get_are_uses_and_a_tail_goes_before_its_head(self):
        store = IndexStore(40)
        store.put(objects("a0", "a1"))
        store.put(objects("b0", "b1"))
        assert store.exists(["a0", "a1", "c0"]).tolist() == [True, True, False]
        store.put(objects("c0"))
        assert sorted(store.keys()) == ["a0", "a1", "b0", "c0"]
        assert store.get(objects("b0", "x")).tolist() == [10, MISSING]
        store.put(objects("d0", "d1"))
        assert sorted(store.keys()) == ["b0", "c0", "d0", "d1"]
        assert (store.num_bytes, store.counters()["evicted"]) == (40, 3)
        assert dict(store.calls) == {"put": 4, "exists": 1, "get": 1}

    def test_without_a_limit_nothing_goes(self):
        store = IndexStore()
        for index in range(100):
            store.put(objects(f"a{index}"))
        store.put(objects("a0"))
        assert (len(store), store.num_bytes, store.counters()["evicted"]) == (100, 1000, 0)
        assert store.remove(["a0", "nowhere"]).all()
        assert (len(store), store.num_bytes) == (99, 990)
        assert store.keys("a1") == ["a1", *(f"a1{n}" for n in range(10))]

    def test_what_is_larger_than_the_store_is_refused(self):
        store = IndexStore(9)
        assert store.put(objects("a", "b")).tolist() == [False, False]
        assert (len(store), store.counters()["refused"]) == (0, 2)


def test_a_link_takes_its_time_for_calls_and_bytes():
    assert Link().seconds(5, 10**9) == 0
    assert Link(gb_s=2, us_per_call=10).seconds(3, 4 * 10**9) == pytest.approx(2.00003)


def test_speeds_that_cannot_be_are_told_together():
    links = Links(host=Link(gb_s=0), storage=Link(gb_s=-1, us_per_call=-5))
    with pytest.raises(ConfigError) as told:
        links.check("job.links")
    keys = ["job.links.host.gb_s", "job.links.storage.gb_s", "job.links.storage.us_per_call"]
    assert [problem.key for problem in told.value.problems] == keys


def test_inline_jobs_run_at_once_and_keep_what_they_raise():
    done = []
    with InlineExecutor() as executor:
        assert executor.submit(done.append, 1).result() is None
        assert done == [1]
        failed = executor.submit(int, "x")
        assert isinstance(failed.exception(), ValueError)
        with pytest.raises(KeyboardInterrupt):
            executor.submit(interrupt)


def interrupt():
    raise KeyboardInterrupt
