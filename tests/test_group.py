"""The host tier: memory, ids, and where the parts of an object lie."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from composer.arena import TRAILER_BYTES
from composer.device_pools import DevicePoolGroup
from composer.errors import InvariantError
from composer.group import HostPoolGroup, reserve
from tests.pools import (
    LAYOUTS,
    ODD_LAYOUTS,
    buffer,
    follows,
    hybrid,
    model,
    plan_of,
    pool,
    stored,
    with_axes,
)

ALL_LAYOUTS = {**LAYOUTS, **ODD_LAYOUTS}
SLOTS = 5


def sections_of_their_own():
    """One object over three axis orders: two sections without records and one of records."""
    return model(
        pool("kv", buffer("k", 3, 5, dtype="uint8"), axes=LAYOUTS["layer_first"]),
        follows("kv", "i", buffer("x", 7, dtype="uint8"), layers=(1,)),
        follows("kv", "j", buffer("x", 6), axes=LAYOUTS["page_first"]),
    )


def groups():
    for axes in ALL_LAYOUTS.values():
        yield HostPoolGroup(plan_of(with_axes(hybrid(), axes), SLOTS))
    yield HostPoolGroup(plan_of(sections_of_their_own(), SLOTS))


def test_slots_of_several_spaces_are_reserved_together_or_not_at_all():
    group = HostPoolGroup(plan_of(hybrid(), SLOTS))
    assert group.reserve({"kv": 3, "window": SLOTS + 1, "linear": 1}) is None
    assert {space.num_free for space in group.spaces.values()} == {SLOTS}
    taken = group.reserve({"kv": 3, "window": 0, "linear": SLOTS})
    assert {space: len(ids) for space, ids in taken.items()} == {"kv": 3, "window": 0, "linear": 5}
    assert group.reserve({"kv": 1, "linear": 1}) is None
    assert group.spaces["kv"].num_free == 2
    group.release(taken)
    assert {space.num_free for space in group.spaces.values()} == {SLOTS}
    with pytest.raises(InvariantError, match="host kv"):
        group.release(taken)


def test_a_negative_count_is_refused_before_anything_is_taken():
    group = HostPoolGroup(plan_of(hybrid(), SLOTS))
    with pytest.raises(InvariantError, match="'window': -1"):
        reserve(group.spaces, {"kv": 2, "window": -1})
    assert group.spaces["kv"].num_free == SLOTS


def test_each_arena_is_one_region_and_no_two_overlap():
    group = HostPoolGroup(plan_of(hybrid(), SLOTS))
    regions = sorted(group.regions)
    assert len(set(regions)) == len(group.arenas) == 4
    for (start, size), (after, _) in pairwise(regions):
        assert start + size <= after


def test_sidecars_share_the_anchors_ids_and_follow_whom_they_name():
    group = HostPoolGroup(plan_of(hybrid(), SLOTS))
    assert group.anchor == "kv"
    shared = {name: entry.share_indices_with_anchor for name, entry in group.entries.items()}
    assert [name for name, flag in shared.items() if flag] == ["index", "latent"]
    assert group.entries["index"].indices_from_pool == "kv"
    assert set(group.spaces) == {"kv", "window", "linear"}


def test_scratch_has_no_host_memory():
    spec = model(
        pool("kv", buffer("x", 8)), follows("kv", "ring", buffer("x", 4), prefix_cacheable=False)
    )
    plan = plan_of(spec, SLOTS)
    assert list(HostPoolGroup(plan).entries) == ["kv"]
    assert list(DevicePoolGroup(plan).entries) == ["kv", "ring"]


def test_an_anchor_without_buffers_counts_pages_and_takes_no_memory():
    spec = model(pool("kv"), follows("kv", "c4", buffer("x", 8)))
    plan = plan_of(spec, SLOTS)
    assert list(HostPoolGroup(plan).entries) == ["c4"]
    assert DevicePoolGroup(plan).entries["kv"].buffers == {}
    assert plan.spaces["kv"].num_host_slots == SLOTS


def test_parts_cover_every_object_once_within_the_registered_memory():
    for group in groups():
        for arena in group.arenas.values():
            start, size = arena.region
            touched = np.zeros(size, dtype=np.uint8)
            sizes = arena.parts.num_bytes.tolist()
            assert sum(sizes) == arena.spec.object_bytes
            for row in arena.parts.addresses(range(SLOTS)).tolist():
                for address, num_bytes in zip(row, sizes, strict=True):
                    first = address - start
                    assert first >= 0
                    assert first + num_bytes <= size
                    touched[first : first + num_bytes] += 1
            assert touched.max() == 1
            assert touched.sum() == SLOTS * arena.spec.object_bytes


def test_sections_start_at_multiples_of_64_bytes():
    for group in groups():
        for arena in group.arenas.values():
            start, size = arena.region
            assert all((start + base) % 64 == 0 for base in arena.bases)
            ends = [
                base + section.total_bytes
                for base, section in zip(arena.bases, arena.sections, strict=True)
            ]
            assert all(end <= base for end, base in zip(ends, arena.bases[1:], strict=False))
            assert max(ends) <= size


def test_a_trailer_is_the_end_of_its_object():
    for group in groups():
        for arena in group.arenas.values():
            for slot in range(SLOTS):
                arena.trailers[slot] = slot + 1
            for slot in range(SLOTS):
                data = stored(arena, slot)
                assert data[-TRAILER_BYTES:] == bytes([slot + 1]) * TRAILER_BYTES
                assert data[:-TRAILER_BYTES] == bytes(len(data) - TRAILER_BYTES)


def test_a_record_is_one_part_and_sections_of_their_own_are_several():
    (arena,) = HostPoolGroup(plan_of(model(pool("kv", buffer("x", 8))), SLOTS)).arenas.values()
    assert len(arena.parts.num_bytes) == 1
    (arena,) = HostPoolGroup(plan_of(sections_of_their_own(), SLOTS)).arenas.values()
    # kv: 3 layers and padding; j: 1 run and padding and trailer; i: a record with its padding
    payload = {"kv": 180, "i": 28, "j": 144}
    assert arena.parts.num_bytes.tolist() == [60, 60, 60, 12, 64, 144, 48 + TRAILER_BYTES]
    assert arena.spec.payload_bytes == sum(payload.values())


def test_ids_outside_a_pool_are_refused_with_its_name():
    group = HostPoolGroup(plan_of(hybrid(), SLOTS))
    group.reserve({"linear": 2})
    for wrong in (-1, SLOTS, 2):
        with pytest.raises(InvariantError, match=f"host linear: id {wrong}"):
            group.spaces["linear"].check([0, wrong])


def test_a_stage_without_layers_of_a_pool_still_has_its_entry():
    spec = model(
        pool("kv", buffer("x", 8), layers=(0,), all_layers=(0, 1)),
        follows("kv", "i", buffer("x", 4), layers=(), all_layers=(1,)),
        follows("kv", "j", buffer("x", 4), layers=(), all_layers=(1,), axes=LAYOUTS["layer_first"]),
    )
    plan = plan_of(spec, SLOTS)
    group = HostPoolGroup(plan)
    assert group.entries["i"].buffers["x"].num_layers == 0
    (arena,) = group.arenas.values()
    assert int(arena.parts.num_bytes.sum()) == arena.spec.object_bytes
    assert replace(plan, spaces=plan.spaces).host_bytes == arena.memory.nbytes
