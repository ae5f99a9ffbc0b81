"""One arithmetic: what a plan says is what is allocated, and never more than the budget."""

import re
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from composer.arena import TRAILER_BYTES
from composer.device_pools import DevicePoolGroup
from composer.errors import ConfigError
from composer.group import HostPoolGroup
from composer.plan import make_plan
from composer.resolve import resolve
from composer.schema import (
    DeviceConfig,
    HostConfig,
    LayoutConfig,
    PoolHitPolicy,
    RankConfig,
    StackConfig,
)
from composer.stack_plan import plan_stack
from tests.model_configs import PRESETS, stack_config
from tests.pools import LAYOUTS, buffer, follows, model, pool, state

MIB = 2**20


def plan(spec, host="64MiB", reserve="0", device="64MiB", checkpoint_tokens=16):
    config = StackConfig(
        host=HostConfig(host, reserve),
        device=DeviceConfig(device),
        checkpoint_tokens=checkpoint_tokens,
    )
    return make_plan(config, spec)


@cache
def resolved(preset, page_size, layers_per_pool):
    config = stack_config(preset)
    config.page_size, config.layers_per_pool = page_size, layers_per_pool
    return config, resolve(config)


@given(
    st.sampled_from(PRESETS),
    st.sampled_from([256, 512, 2048]),
    st.sampled_from([1, 2, None]),
    st.integers(1, 2**36),
    st.integers(0, 2**33),
    st.sampled_from([64, 512, 4096]),
)
@settings(max_examples=150, deadline=None)
def test_the_sum_of_all_pools_stays_within_the_budget(
    preset, page_size, layers_per_pool, memory, reserve, checkpoint_tokens
):
    config, spec = resolved(preset, page_size, layers_per_pool)
    config = replace(
        config,
        host=HostConfig(str(memory), str(reserve)),
        device=DeviceConfig(str(memory)),
        checkpoint_tokens=checkpoint_tokens,
    )
    try:
        made = make_plan(config, spec)
    except ConfigError as error:
        if "holds not one page" not in str(error):
            raise
        return
    assert made.host_bytes <= memory - reserve == made.host_budget_bytes
    assert made.device_bytes <= memory == made.device_budget_bytes
    for name, space in made.spaces.items():
        least = space.window_pages or 1
        assert min(space.num_host_slots, space.num_device_slots) >= least, name
    anchor = spec.anchor
    if anchor is not None and made.spaces[anchor].host_slot_bytes:
        unused = made.host_budget_bytes - made.host_bytes
        rounding = 64 * sum(len(arena.sections) + 1 for arena in made.arenas)
        assert unused < made.spaces[anchor].host_slot_bytes + rounding


def small_pools():
    return model(
        pool("kv", buffer("k", 2, 16, cut=True), buffer("v", 2, 16, cut=True)),
        pool(
            "window",
            buffer("k", 2, 16, cut=True),
            hit_policy=PoolHitPolicy.trailing_pages,
            window_tokens=8,
        ),
        state("linear", buffer("s", 4, 16, cut=True)),
    )


def weighted(spec, *weights):
    pairs = zip(spec.pools, weights, strict=True)
    return replace(spec, pools=tuple(replace(one, weight=weight) for one, weight in pairs))


@pytest.mark.parametrize("weights", [(None, None, None), (61.0, 13.0, 26.0), (1.0, 1.0, 1.0)])
def test_a_budget_is_one_for_all_pools_and_used(weights):
    made = plan(weighted(small_pools(), *weights), host="1GiB", device="1GiB")
    for found in (made.host_bytes, made.device_bytes):
        assert 0.97 * 2**30 < found <= 2**30
    if weights[0] is not None:
        total = sum(weights)
        for (name, space), weight in zip(made.spaces.items(), weights, strict=True):
            share = space.num_host_slots * space.host_slot_bytes
            assert share == pytest.approx(2**30 * weight / total, rel=0.001), name


@given(
    st.lists(st.floats(0, 1e6), min_size=3, max_size=3),
    st.integers(200_000, 2**40),
)
@settings(max_examples=200, deadline=None)
def test_weights_never_spend_more_than_there_is(weights, memory):
    assume(sum(weights) > 0)
    try:
        made = plan(weighted(small_pools(), *weights), host=str(memory), device=str(memory))
    except ConfigError as error:
        if "weight" not in str(error):
            raise
        return
    assert made.host_bytes <= memory
    assert made.device_bytes <= memory


@pytest.mark.parametrize(
    "weights",
    [
        (1.0, None, None),
        (1.0, 0.0, 1.0),
        (1.0, -1.0, 1.0),
        (0.0, 0.0, 0.0),
        (float("inf"), 1.0, 1.0),
        (float("nan"), 1.0, 1.0),
    ],
)
def test_weights_that_leave_a_space_nothing_are_refused_by_name(weights):
    with pytest.raises(ConfigError, match=r"pools\.\w+\.weight: .* gives 0 B of host\.memory"):
        plan(weighted(small_pools(), *weights))


def test_a_weight_of_a_pool_without_ids_of_its_own_is_refused():
    spec = model(pool("kv", buffer("x", 8)), follows("kv", "i", buffer("x", 2), weight=2.0))
    with pytest.raises(ConfigError, match=r"pools\.i\.weight: .*follows 'kv'.*pools\.kv\.weight"):
        plan(spec)


def test_sidecars_count_in_the_budget_and_have_their_sources_pages():
    spec = model(
        pool("kv", buffer("latent", 576), layers=range(61)),
        follows("kv", "index", buffer("key", 132, dtype="uint8"), layers=range(61)),
    )
    made = plan(spec, host="512MiB", device="512MiB")
    assert list(made.spaces) == ["kv"]
    pages = made.spaces["kv"].num_host_slots
    page_bytes = 61 * 4 * (1152 + 132)
    assert made.spaces["kv"].device_slot_bytes == page_bytes
    assert made.spaces["kv"].num_device_slots == 512 * MIB // page_bytes
    assert made.host_bytes <= 512 * MIB < (pages + 1) * (page_bytes + 48 + TRAILER_BYTES) + 128


def test_the_rounding_of_sections_starts_is_within_the_budget():
    for memory in range(100_000, 101_700, 30):
        assert plan(small_pools(), host=str(memory)).host_bytes <= memory


def test_a_page_counts_each_buffer_by_its_own_size():
    spec = model(pool("kv", buffer("k", 64), buffer("v", 32), layers=(0,)))
    (arena,) = plan(spec).arenas
    assert arena.payload_bytes == 4 * 192


@pytest.mark.parametrize("key", ["host.memory", "device.memory"])
@pytest.mark.parametrize("memory", ["0", "1", "1000"])
def test_a_budget_that_holds_not_one_page_says_what_it_takes(key, memory):
    tier = key.split(".", maxsplit=1)[0]
    with pytest.raises(ConfigError) as error:
        plan(small_pools(), **{tier: memory})
    space_bytes = {"host": (1600, 832 * 2, 448), "device": (1536, 768 * 2, 384)}[tier]
    assert f"{key}: " in str(error.value)
    assert f"{sum(space_bytes):,} bytes" in str(error.value)


@pytest.mark.parametrize("reserve", ["0", "100MiB", "3GiB"])
@pytest.mark.parametrize("preset", ["deepseek_v3_2", "gemma3_27b", "qwen3_next_80b"])
def test_the_size_that_an_error_advises_is_enough_and_hardly_more(preset, reserve):
    config = stack_config(preset)
    config.host = HostConfig("1MiB", reserve)
    spec = resolve(config)
    with pytest.raises(ConfigError) as error:
        make_plan(config, spec)
    advised = int(re.search(r"Raise host\.memory to (\d+)MiB", str(error.value))[1])
    config.host = HostConfig(f"{advised}MiB", reserve)
    assert make_plan(config, spec).host_bytes > 0
    config.host = HostConfig(f"{advised - 1}MiB", reserve)
    with pytest.raises(ConfigError):
        make_plan(config, spec)


def test_every_wrong_size_is_told_at_once():
    with pytest.raises(ConfigError) as error:
        plan(small_pools(), host="8 apples", reserve="x", device="-1")
    keys = [problem.key for problem in error.value.problems]
    assert keys == ["host.memory", "host.reserve", "device.memory"]


def test_a_stage_that_owns_no_layer_of_any_pool_plans_next_to_nothing():
    spec = small_pools()
    spec = replace(spec, pools=tuple(replace(one, layers=()) for one in spec.pools))
    made = plan(spec)
    assert (made.host_bytes, made.device_bytes, made.arenas) == (0, 0, ())
    assert [space.num_host_slots for space in made.spaces.values()] == [1, 2, 1]
    HostPoolGroup(made)
    DevicePoolGroup(made)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("preset", "tp", "pp"),
    [
        ("deepseek_v3_2", 1, 1),
        ("deepseek_v4_flash", 2, 3),
        ("qwen3_next_80b", 2, 2),
        ("gemma3_27b", 4, 5),
        ("mamba2_2_7b", 1, 1),
        ("nemotron_nano_9b_v2", 8, 10),
    ],
)
def test_what_is_allocated_is_what_the_plan_says(preset, layout, tp, pp):
    config = stack_config(preset)
    config.layers_per_pool, config.layout = 2, LayoutConfig(list(LAYOUTS[layout]))
    config.host, config.device = HostConfig("96MiB", "1MiB"), DeviceConfig("96MiB")
    for rank, stage in {(0, 0), (tp - 1, pp - 1), (0, pp // 2)}:
        config.parallel.tp, config.parallel.pp = RankConfig(rank, tp), RankConfig(stage, pp)
        made = make_plan(config, resolve(config))
        host, device = HostPoolGroup(made), DevicePoolGroup(made)
        assert sum(arena.memory.nbytes for arena in host.arenas.values()) == made.host_bytes
        tensors = [tensor for pools in device.tensors.values() for tensor in pools.values()]
        assert sum(tensor.nbytes for tensor in tensors) == made.device_bytes
        assert made.host_bytes <= 95 * MIB
        for arena in host.arenas.values():
            _ = arena.parts, arena.trailers


@pytest.mark.parametrize("layout", LAYOUTS)
def test_figures_of_a_sparse_attention_model_at_page_64(layout):
    _, made = plan_stack("deepseek_v3_2", [f"layout={layout}"])
    kv, index = made.spec.pools
    assert (kv.page_bytes, index.page_bytes) == (4_497_408, 515_328)
    (arena,) = made.arenas
    assert arena.payload_bytes == 5_012_736
    assert made.objects_per_million_tokens() == 15_625
    assert made.bytes_per_million_tokens() == 15_625 * arena.object_bytes
    (section,) = arena.place(3)
    expected = {"page_envelope": 1, "page_first_direct": 2, "page_first": 2, "page_head": 2}
    assert len(section.runs) == expected.get(layout, 2 * 61)


def test_checkpoints_count_in_objects_by_their_windows():
    made = plan(small_pools(), checkpoint_tokens=40)
    pages, checkpoints = 250_000, 25_000
    assert made.checkpoint_pages == 10
    assert made.objects_per_million_tokens() == pages + checkpoints * 2 + checkpoints


def test_units_of_pools_are_their_own():
    made = plan(small_pools(), host="1GiB", checkpoint_tokens=512)
    kv, window, linear = made.spaces.values()
    assert kv.num_host_slots >= 128 * linear.num_host_slots
    assert window.num_host_slots == 2 * linear.num_host_slots
    assert (linear.is_state, kv.is_state, linear.window_pages) == (True, False, 1)
