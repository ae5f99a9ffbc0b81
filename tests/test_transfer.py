"""Copies between the tiers are byte-exact for any pair of layouts, and touch nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.device_pools import DevicePoolGroup
from composer.errors import InvariantError
from composer.group import HostPoolGroup
from composer.layout import AXES
from composer.plan import make_plan
from composer.resolve import resolve
from composer.schema import DeviceConfig, HostConfig, LayoutConfig, RankConfig
from composer.transfer import PoolTransfer, Transfer
from tests.model_configs import stack_config
from tests.pools import (
    LAYOUTS,
    ODD_LAYOUTS,
    buffer,
    differences,
    fill,
    follows,
    hybrid,
    model,
    object_bytes,
    plan_of,
    poison,
    pool,
    state,
    stored,
    take_all,
    with_axes,
)

ALL_LAYOUTS = {**LAYOUTS, **ODD_LAYOUTS}
HOST, DEVICE = 5, 6
KINDS = ["stacked", "per_layer", "interleaved", "unaligned"]


def part_numbers(part):
    return part.row_bytes // part.item_bytes


def engine_tensors(plan, kind):
    """Tensors as engines hand them in: stacked, one per layer, or rows within wider ones."""
    made = {}
    for one in plan.spec.pools:
        rows = plan.spaces[one.index_space].num_device_slots * one.rows_per_page
        made[one.name] = {}
        for part in one.buffers:
            shape, dtype = (len(one.layers), rows, *part.shape), getattr(torch, part.dtype)
            if kind == "stacked":
                made[one.name][part.name] = torch.zeros(shape, dtype=dtype)
            elif kind == "per_layer":
                made[one.name][part.name] = [
                    torch.zeros(shape[1:], dtype=dtype) for _ in one.layers
                ]
            elif kind == "unaligned":  # a number before each row, as in a packed row
                wide = torch.zeros(*shape[:2], part_numbers(part) + 1, dtype=dtype)
                made[one.name][part.name] = wide[..., 1:].unflatten(2, part.shape)
            else:  # layers interleaved, other data beside each row and behind the last page
                wide = torch.zeros(rows + 3, shape[0], 2, *part.shape, dtype=dtype)
                made[one.name][part.name] = wide[:, :, 1].transpose(0, 1)
    return made


def tiers(plan, kind="stacked"):
    device = DevicePoolGroup(plan, buffers=engine_tensors(plan, kind))
    host = HostPoolGroup(plan)
    take_all(device, host)
    return device, host, Transfer(device, host)


def round_trip(device, host, transfer, device_ids, host_ids):
    """Back up pages 100.. from some device slots, and load them into others."""
    for space, slots in device.spaces.items():
        for slot in range(slots.num_slots):
            fill(device, space, slot, slot)
        for slot, page in zip(device_ids, range(100, 200), strict=False):
            fill(device, space, slot, page)
        transfer.backup([PoolTransfer(space, device_ids, host_ids)])
        for slot in range(slots.num_slots):
            poison(device, space, slot)
        back = [(slot + 1) % slots.num_slots for slot in device_ids]
        transfer.load_back([PoolTransfer(space, back, host_ids)])
        found = []
        for slot in range(slots.num_slots):
            page = 100 + back.index(slot) if slot in back else None
            found += differences(device, space, slot, page)
        assert found == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", ALL_LAYOUTS.values(), ids=ALL_LAYOUTS)
def test_a_round_trip_is_byte_exact_and_leaves_other_pages_alone(axes, kind):
    device, host, transfer = tiers(plan_of(with_axes(hybrid(), axes), HOST, DEVICE), kind)
    round_trip(device, host, transfer, [4, 0, 1, 2], [3, 2, 0, 1])
    for arena in host.arenas.values():
        # slot 4 was never used, the other objects are what enumerating their cells gives
        assert stored(arena, 4) == bytes(arena.spec.object_bytes)
        for slot, page in ((3, 100), (2, 101), (0, 102), (1, 103)):
            assert stored(arena, slot)[:-64] == object_bytes(arena.spec, page)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_legal_axis_order_and_any_slots_will_do(data):
    axes = data.draw(st.permutations(AXES))
    left = axes[: axes.index("buffer")]
    spec = hybrid()
    if {"token", "head"} & set(left):  # such orders need pools that are alike
        extents = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5)))
        spec = model(
            pool("kv", buffer("k", *extents, cut=True), buffer("v", *extents, cut=True)),
            follows("kv", "more", buffer("k", *extents, cut=True), layers=(1,)),
            state("linear", buffer("s", *extents)),
        )
    plan = plan_of(with_axes(spec, axes), HOST, DEVICE)
    kind = data.draw(st.sampled_from(KINDS))
    count = data.draw(st.integers(0, HOST))
    device_ids = data.draw(st.permutations(range(DEVICE)))[:count]
    host_ids = data.draw(st.permutations(range(HOST)))[:count]
    round_trip(*tiers(plan, kind), device_ids, host_ids)


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "int64"],
)
def test_rows_of_every_dtype_and_of_odd_size_are_moved(dtype, axes):
    spec = model(
        pool("kv", buffer("x", 7, dtype=dtype), layers=(0, 2), axes=axes),
        follows("kv", "odd", buffer("y", 1, dtype="uint8"), layers=(0,), axes=axes),
    )
    round_trip(*tiers(plan_of(spec, HOST, DEVICE)), [5, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_keys_and_values_of_unequal_head_size_keep_their_own_strides(axes):
    spec = model(
        pool("kv", buffer("k", 2, 192, cut=True), buffer("v", 2, 128, cut=True), axes=axes)
    )
    device, host, transfer = tiers(plan_of(spec, HOST, DEVICE))
    round_trip(device, host, transfer, [0, 1], [1, 2])
    (arena,) = host.arenas.values()
    assert arena.spec.payload_bytes == 3 * 4 * 2 * (192 + 128) * 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("preset", "tp", "pp"),
    [
        ("llama3_1_8b", 1, 1),
        ("deepseek_v3_2", 1, 1),
        ("qwen3_next_80b", 2, 2),
        ("gemma3_27b", 1, 1),
        ("mamba2_2_7b", 1, 1),
        ("deepseek_v4_flash", 1, 1),
        ("mimo_v2_flash", 1, 1),
    ],
)
def test_presets_make_a_byte_exact_round_trip(preset, layout, tp, pp):
    config = stack_config(preset)
    config.layers_per_pool, config.layout = 2, LayoutConfig(list(LAYOUTS[layout]))
    config.parallel.tp, config.parallel.pp = RankConfig(tp - 1, tp), RankConfig(0, pp)
    config.host, config.device = HostConfig("1GiB"), DeviceConfig("1GiB")
    spec = resolve(config)
    stored_pools = tuple(one for one in spec.pools if one.prefix_cacheable)
    plan = make_plan(config, replace(spec, pools=stored_pools))
    spaces = {
        name: replace(space, num_host_slots=3, num_device_slots=3)
        for name, space in plan.spaces.items()
    }
    device, _, transfer = tiers(replace(plan, spaces=spaces))
    for space in device.spaces:
        fill(device, space, 0, 7)
        fill(device, space, 2, 9)
    transfer.backup([PoolTransfer(space, [0, 2], [2, 1]) for space in device.spaces])
    for space in device.spaces:
        for slot in range(3):
            poison(device, space, slot)
    transfer.load_back([PoolTransfer(space, [1, 2], [1, 2]) for space in device.spaces])
    found = []
    for space in device.spaces:
        for slot, page in ((0, None), (1, 9), (2, 7)):
            found += differences(device, space, slot, page)
    assert found == []


def test_scratch_pools_are_left_alone():
    spec = model(
        pool("kv", buffer("x", 8)), follows("kv", "ring", buffer("x", 4), prefix_cacheable=False)
    )
    device, _, transfer = tiers(plan_of(spec, HOST, DEVICE))
    fill(device, "kv", 0, 1)
    transfer.backup([PoolTransfer("kv", [0], [0])])
    poison(device, "kv", 0)
    transfer.load_back([PoolTransfer("kv", [0], [0])])
    assert {place.split()[0] for place in differences(device, "kv", 0, 1)} == {"ring.x"}


def test_a_stage_without_layers_of_a_pool_moves_the_others():
    spec = model(
        pool("kv", buffer("x", 8), layers=(0,), all_layers=(0, 1)),
        follows("kv", "i", buffer("x", 4), layers=(), all_layers=(1,)),
    )
    round_trip(*tiers(plan_of(spec, HOST, DEVICE)), [0, 1], [1, 2])


@pytest.mark.parametrize(
    ("device_ids", "host_ids", "message"),
    [
        ([DEVICE], [0], "device kv: id 6 is outside"),
        ([0], [HOST], "host kv: id 5 is outside"),
        ([-1], [0], "device kv: id -1 is outside"),
        ([0], [-1], "host kv: id -1 is outside"),
        ([5], [0], "device kv: id 5 is not taken"),
        ([0], [4], "host kv: id 4 is not taken"),
        ([0, 1], [0], "2 device and 1 host slots"),
    ],
)
@pytest.mark.parametrize("way", ["backup", "load_back"])
def test_ids_that_are_not_taken_are_refused_before_a_byte_moves(way, device_ids, host_ids, message):
    device, host, transfer = tiers(plan_of(hybrid(), HOST, DEVICE))
    device.spaces["kv"].free([5])
    host.spaces["kv"].free([4])
    for slot in range(DEVICE):
        poison(device, "kv", slot)
    before = [arena.memory.clone() for arena in host.arenas.values()]
    good = PoolTransfer("window", [0], [0])
    with pytest.raises(InvariantError, match=message):
        getattr(transfer, way)([good, PoolTransfer("kv", device_ids, host_ids)])
    after = [arena.memory for arena in host.arenas.values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not any(differences(device, "kv", slot, None) for slot in range(DEVICE))


def test_bytes_moved_are_the_payload():
    device, _, transfer = tiers(plan_of(hybrid(), HOST, DEVICE))
    payload = {
        name: sum(one.page_bytes for one in pools)
        for name, pools in device.plan.spec.spaces.items()
    }
    transfer.backup([PoolTransfer("kv", [0, 1], [0, 1]), PoolTransfer("linear", [3], [2])])
    transfer.load_back([PoolTransfer("window", [0], [0])])
    assert transfer.backed_up.num_bytes == 2 * payload["kv"] + payload["linear"]
    assert transfer.loaded.num_bytes == payload["window"]


def test_states_are_copied_within_the_device_for_every_buffer():
    device, _, transfer = tiers(plan_of(hybrid(), HOST, DEVICE), "per_layer")
    for slot in range(DEVICE):
        fill(device, "linear", slot, slot)
    transfer.copy_states({"linear": 2}, {"linear": 5})
    pages = [0, 1, 2, 3, 4, 2]
    assert [differences(device, "linear", slot, page) for slot, page in enumerate(pages)] == [
        []
    ] * DEVICE
    with pytest.raises(InvariantError, match="device linear: id 6"):
        transfer.copy_states({"linear": 2}, {"linear": 6})


@pytest.mark.parametrize("axes", ALL_LAYOUTS.values(), ids=ALL_LAYOUTS)
def test_hosts_of_two_layouts_exchange_objects_where_they_share_a_namespace(axes):
    spec = hybrid()
    device, host, transfer = tiers(plan_of(spec, HOST, DEVICE))
    other_device, other, other_transfer = tiers(plan_of(with_axes(spec, axes), HOST, DEVICE))
    for space in device.spaces:
        fill(device, space, 0, 42)
        fill(other_device, space, 0, 42)
    transfer.backup([PoolTransfer(space, [0], [1]) for space in device.spaces])
    other_transfer.backup([PoolTransfer(space, [0], [2]) for space in device.spaces])
    for key, arena in host.arenas.items():
        same = arena.spec.namespace == other.arenas[key].spec.namespace
        equal = stored(arena, 1)[:-64] == stored(other.arenas[key], 2)[:-64]
        assert equal if same else True
        if axes in (LAYOUTS["page_first_direct"], LAYOUTS["layer_first"]):
            assert same


def test_the_padding_of_host_memory_stays_zero():
    for axes in LAYOUTS.values():
        device, host, transfer = tiers(plan_of(with_axes(hybrid(), axes), HOST, DEVICE))
        for space in device.spaces:
            for slot in range(HOST):
                poison(device, space, slot)
            transfer.backup([PoolTransfer(space, list(range(HOST)), list(range(HOST)))])
        for arena in host.arenas.values():
            data = np.frombuffer(b"".join(stored(arena, slot) for slot in range(HOST)), np.uint8)
            assert np.count_nonzero(data) == HOST * arena.spec.payload_bytes
