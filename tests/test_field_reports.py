"""Faults that others had in production, by their number in the catalogue, with the right answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from composer.backends.memory import MemoryBackend
from composer.boundary import Requirement, longest, restorable_lengths
from composer.errors import ConfigError, InvariantError
from composer.keys import ObjectKey, build_key, parse_key
from composer.page_hash import hash_pages, root_hash
from composer.stack import compose
from composer.stack_plan import plan_stack
from tests.engine import Engine, open_stack, prompt
from tests.faults import Kept

MIB, GIB = 1 << 20, 1 << 30


def plan(model: str, *overrides: str):
    return plan_stack(model, ["backend=memory", *overrides])[1]


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("qwen3_next_80b", {"kv": 75, "linear": 25}),
        ("gemma3_27b", {"kv": 25, "swa": 75}),
        ("qwen3_next_80b", {}),
    ],
)
def test_d1_one_budget_is_shared_by_all_pools(model, weights):
    shares = [f"+pools.{pool}.weight={weight}" for pool, weight in weights.items()]
    made = plan(model, "layers_per_pool=2", "host.memory=1GiB", *shares)

    assert 0.97 * GIB < made.host_bytes <= GIB
    for pool, weight in weights.items():
        space = made.spaces[pool]
        share = space.num_host_slots * space.host_slot_bytes / GIB
        assert share == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_d2_what_follows_the_kv_pool_is_in_its_budget_and_has_its_pages():
    made = plan("deepseek_v3_2", "host.memory=512MiB", "draft=true")

    assert {pool.index_space for pool in made.spec.pools} == {"kv"}
    assert made.spaces["kv"].host_slot_bytes == 64 * 61 * (1152 + 132) + 64 + 64 * 1284 + 64
    assert made.host_bytes <= 512 * MIB


def test_d9_each_pool_counts_in_its_own_unit():
    made = plan("gemma3_27b", "page_size=64")
    assert (made.spaces["kv"].window_pages, made.spaces["swa"].window_pages) == (None, 16)
    with (
        compose("qwen3_next_80b", ["backend=memory", "layers_per_pool=1"]) as stack,
        pytest.raises(InvariantError, match=r"linear: id .* outside"),
    ):
        stack.device.spaces["linear"].check([stack.plan.spaces["kv"].num_device_slots - 1])


def test_a5_every_tensor_of_a_page_comes_back_not_only_the_known_ones():
    with open_stack("kv+indexer+state") as stack:
        engine = Engine(stack)
        first, second = prompt(*range(1, 9)), prompt(*range(21, 29))
        engine.serve(first)
        engine.serve(second)
        stack.publish()
        stack.cache.tiers.device.clear(None)
        engine.poison_free()

        assert engine.serve(first).num_pages == engine.serve(second).num_pages == 8
        assert engine.num_verified > 0


def test_a7_pools_agree_on_one_boundary_and_deeper_survivors_do_not_count():
    kv = np.arange(16) < 8
    states = np.isin(np.arange(16), [3, 15])  # at pages 4 and 16
    needs = [Requirement("kv", kv, None), Requirement("state", states, 1)]

    assert longest(restorable_lengths(needs, 16)) == 4


def test_a10_a_required_pool_that_cannot_be_laid_out_is_refused_and_not_dropped():
    with pytest.raises(ConfigError) as raised:
        plan("deepseek_v3_2", "layout.axes=[page,token,buffer,layer,head]")

    assert "kv.latent" in str(raised.value)
    assert "indexer.key" in str(raised.value)


def test_b1_other_weights_under_the_same_name_share_nothing():
    store = MemoryBackend()
    tokens = prompt(*range(1, 9))
    for revision, known in (("r1", 0), ("r2", 0), ("r1", 8)):
        settings = {"model": {"name": "test/tiny", "revision": revision}}
        with open_stack("kv", backend=Kept(store), **settings) as stack:
            assert Engine(stack).serve(tokens).num_pages == known
            stack.publish()


def list_keys(store: MemoryBackend) -> list[str]:
    return store.keys()


def test_b4_every_path_uses_one_key_and_a_deployments_tag_is_in_it_once():
    store = MemoryBackend()
    tokens = prompt(*range(1, 5))
    for tag, known in (("dep1", 0), ("dep2", 0), ("dep1", 4)):
        with open_stack("kv+state", backend=Kept(store), deployment=tag) as stack:
            assert Engine(stack).serve(tokens).num_pages == known
            stack.publish()
    keys = list_keys(store)
    assert len({parse_key(key).namespace for key in keys}) == 4  # two pools under two tags

    with open_stack("kv+state", backend=Kept(store), deployment="dep1") as stack:
        stack.clear()
    assert {parse_key(key).namespace for key in list_keys(store)} < {
        parse_key(key).namespace for key in keys
    }
    with open_stack("kv+state", backend=Kept(store), deployment="dep2") as stack:
        assert Engine(stack).serve(tokens).num_pages == 4


def test_b6_keys_do_not_depend_on_the_process():
    code = "from composer.page_hash import *; print(hash_pages(list(range(192)), 64, root_hash()))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(printed) == 1


def test_b7_hashes_are_long_and_tokens_are_not_folded():
    def one(*tokens: int) -> bytes:
        return hash_pages(list(tokens), len(tokens), root_hash())[0]

    assert len(one(1)) * 8 == 256
    assert len({one(2**31), one(-1), one(0), one(2**31 - 1), one(2**32)}) == 5
    assert one(1, 23) != one(12, 3)


def test_b9_keys_read_back_whatever_the_names():
    for name in ("a/b", "x@y", "p_k", "é", "%2F", "a:b,c", " "):
        key = ObjectKey("n" * 32, "-", name, "h0-1of2.l0-3", bytes(31) + b"\x01")
        assert parse_key(build_key(key)) == key


def test_e1_ids_that_were_handed_out_do_not_change_under_their_holder():
    with open_stack("kv") as stack:
        slots = stack.allocate(4)
        held = list(slots.pages["kv"])
        before = list(held)
        for _ in range(100):
            other = stack.allocate(3)
            other.release()
        assert held == before
        slots.release()


def test_e4_a_branch_inside_a_page_run_in_flight_loses_no_page():
    with open_stack("kv", workers=True) as stack:
        engine = Engine(stack)
        long, branch = prompt(*range(1, 17)), prompt(*range(1, 7), *range(90, 94))
        engine.serve(long)
        assert engine.serve(branch).num_pages == 6
        stack.publish()
        stack.cache.tiers.device.clear(None)
        stack.cache.tiers.host.clear(None)
        assert engine.serve(long).num_pages == 16
        assert engine.serve(branch).num_pages == 10


def stacks_on_a_used_store(schema: str, num_pages: int) -> Iterator[object]:
    store = MemoryBackend()
    with open_stack(schema, backend=Kept(store)) as stack:
        Engine(stack).serve(prompt(*range(1, num_pages + 1)))
        stack.publish()
    yield store
    with open_stack(schema, backend=Kept(store)) as stack:
        yield stack


def test_f8_a_batch_with_missing_pages_keeps_the_prefix_before_them():
    reader = stacks_on_a_used_store("kv", 16)
    store, tokens = next(reader), prompt(*range(1, 17))
    hashes = hash_pages(tokens, 4, root_hash())
    lost = [key for key in list_keys(store) if parse_key(key).page_hash in (hashes[10], hashes[13])]
    store.remove(lost)
    stack = next(reader)

    with stack.restore(stack.match(tokens)) as lease:
        assert lease.num_pages == 10
    assert len(stack.cache.tiers.host.pages) == 10
    reader.close()


def test_g2_the_plan_says_how_many_objects_a_million_tokens_leave():
    assert plan("deepseek_v3_2").objects_per_million_tokens() == 15_625
    assert plan("deepseek_v3_2", "draft=true").objects_per_million_tokens() == 2 * 15_625
