"""Tiny models built by hand, and bytes that say where they belong.

Every byte of a page is a pure function of pool, buffer, layer, page and rank, so that a byte that
ends in a wrong place is a difference. ``object_bytes`` builds a storage object by enumerating its
cells, the slow way: what layouts, copies and objects are compared with.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from composer.arena import ArenaSpec, pool_blocks
from composer.device_pools import DevicePoolGroup
from composer.group import HostArena, HostPoolGroup
from composer.layout import Block
from composer.plan import StackPlan, make_plan
from composer.schema import DeviceConfig, HostConfig, PoolHitPolicy, StackConfig, Unit
from composer.spec import BufferSpec, ModelSpec, PoolSpec, Split

LAYOUTS = {
    "page_envelope": ("page", "buffer", "layer", "token", "head"),
    "page_first_direct": ("buffer", "page", "layer", "token", "head"),
    "page_first": ("buffer", "page", "token", "layer", "head"),
    "page_head": ("buffer", "page", "head", "token", "layer"),
    "layer_first": ("buffer", "layer", "page", "token", "head"),
}
ODD_LAYOUTS = {  # page innermost, layer outermost, rows cut in heads that lie far apart
    "page_last": ("buffer", "layer", "token", "head", "page"),
    "layer_outside": ("layer", "page", "buffer", "head", "token"),
    "head_outside": ("buffer", "head", "page", "token", "layer"),
    "envelope_by_layer": ("page", "layer", "buffer", "token", "head"),
}
PAGE_SIZE = 4


def buffer(name: str, *shape: int, dtype: str = "bfloat16", cut: bool = False) -> BufferSpec:
    """A buffer; ``cut``: its first axis is heads (or a state's parts), all of them held here."""
    split = Split(0, (shape[0],), (1,), ((0, shape[0]),)) if cut else None
    return BufferSpec(name, shape, shape, dtype, split)


def pool(
    name: str,
    *buffers: BufferSpec,
    layers: Sequence[int] = (0, 1, 2),
    unit: Unit = Unit.token,
    **settings: object,
) -> PoolSpec:
    """A pool that owns its ids; its shard follows from its buffers."""
    shard, shard_class = "r", "replicated"
    if cut := [one for one in buffers if one.split is not None]:
        heads = cut[0].shape[0]
        is_token = unit is Unit.token
        shard = f"h0-{heads - 1}of{heads}" if is_token else "s0of1"
        shard_class = "heads" if is_token else "rank"
    defaults: dict[str, object] = {
        "index_space": name,
        "hit_policy": PoolHitPolicy.all_pages,
        "axes": LAYOUTS["page_envelope"],
        "rows_per_page": PAGE_SIZE if unit is Unit.token else 1,
        "shard": shard,
        "shard_class": shard_class,
        "all_layers": tuple(layers),
    }
    values = {**defaults, **settings}
    return PoolSpec(name=name, unit=unit, layers=tuple(layers), buffers=buffers, **values)


def follows(source: str, name: str, *buffers: BufferSpec, **settings: object) -> PoolSpec:
    """A sidecar of ``source``, which owns its ids."""
    return pool(name, *buffers, index_space=source, indices_from_pool=source, **settings)


def state(name: str, *buffers: BufferSpec, **settings: object) -> PoolSpec:
    return pool(
        name, *buffers, unit=Unit.state, hit_policy=PoolHitPolicy.trailing_pages, **settings
    )


def model(*pools: PoolSpec, anchor: str | None = "kv", **identity: str) -> ModelSpec:
    num_layers = max((layer + 1 for one in pools for layer in one.all_layers), default=1)
    return ModelSpec(
        name="tiny",
        page_size=PAGE_SIZE,
        num_layers=num_layers,
        pools=pools,
        draft_pools=(),
        anchor=anchor,
        stage=(0, num_layers),
        identity={"model": "tiny", **identity},
    )


def with_axes(spec: ModelSpec, axes: Sequence[str]) -> ModelSpec:
    return replace(spec, pools=tuple(replace(one, axes=tuple(axes)) for one in spec.pools))


def hybrid() -> ModelSpec:
    """Unequal K and V, packed index keys of odd length, a window, and a state of four dtypes."""
    return model(
        pool("kv", buffer("k", 3, 12, cut=True), buffer("v", 3, 8, cut=True), layers=(1, 3, 4)),
        follows("kv", "index", buffer("key", 13, dtype="uint8"), unit=Unit.page, layers=(3,)),
        follows("kv", "latent", buffer("x", 5, dtype="float8_e4m3fn"), layers=(0, 3)),
        pool(
            "window",
            buffer("k", 2, 3, dtype="float32", cut=True),
            layers=(0, 2),
            hit_policy=PoolHitPolicy.trailing_pages,
            window_tokens=2 * PAGE_SIZE,
        ),
        state(
            "linear",
            buffer("temporal", 2, 3, 3, dtype="float32", cut=True),
            buffer("conv", 6, 3, cut=True),
            buffer("history", 2, dtype="int64"),
            buffer("mask", 7, dtype="uint8"),
            layers=(0, 2),
        ),
    )


def plan_of(spec: ModelSpec, host_slots: int = 5, device_slots: int = 6) -> StackPlan:
    """A plan with these many slots in every index space."""
    config = StackConfig(host=HostConfig("1GiB"), device=DeviceConfig("1GiB"))
    plan = make_plan(config, spec)
    spaces = {
        name: replace(space, num_host_slots=host_slots, num_device_slots=device_slots)
        for name, space in plan.spaces.items()
    }
    return replace(plan, spaces=spaces)


def take_all(*groups: HostPoolGroup | DevicePoolGroup) -> None:
    """Take every slot, so that all ids may be used."""
    for group in groups:
        for space in group.spaces.values():
            space.allocate(space.num_free)


def pattern(
    name: str, buffer_name: str, layer: int, page: int, num_bytes: int, rank: int = 0
) -> np.ndarray:
    """What one layer of one buffer keeps of one page."""
    where = f"{name}/{buffer_name}/{layer}/{page}/{rank}".encode()
    seed = int.from_bytes(hashlib.sha256(where).digest()[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def page_rows(
    group: DevicePoolGroup, one: PoolSpec, buffer_name: str, slot: int
) -> list[torch.Tensor]:
    """Per layer, the rows of a slot as bytes ``[row, ...]``: a view of the device tensor."""
    tensors = group.tensors[one.name][buffer_name]
    rows = slice(slot * one.rows_per_page, (slot + 1) * one.rows_per_page)
    return [tensors[index][rows].view(torch.uint8) for index in range(len(one.layers))]


def fill(group: DevicePoolGroup, space: str, slot: int, page: int, rank: int = 0) -> None:
    """Write the pattern of ``page`` into a device slot."""
    for one in group.plan.spaces[space].pools:
        for spec in one.buffers:
            parts = page_rows(group, one, spec.name, slot)
            for layer, part in zip(one.layers, parts, strict=True):
                data = pattern(one.name, spec.name, layer, page, part.numel(), rank)
                part.copy_(torch.from_numpy(data).reshape(part.shape))


def poison(group: DevicePoolGroup, space: str, slot: int) -> None:
    for one in group.plan.spaces[space].pools:
        for spec in one.buffers:
            for part in page_rows(group, one, spec.name, slot):
                part.fill_(0xA5)


def differences(
    group: DevicePoolGroup, space: str, slot: int, page: int | None, rank: int = 0
) -> list[str]:
    """Places of a device slot that do not hold ``page`` (None: the poison)."""
    found = []
    for one in group.plan.spaces[space].pools:
        for spec in one.buffers:
            parts = page_rows(group, one, spec.name, slot)
            for layer, part in zip(one.layers, parts, strict=True):
                data = part.numpy().reshape(-1)
                want = (
                    np.full(data.shape, 0xA5, dtype=np.uint8)
                    if page is None
                    else pattern(one.name, spec.name, layer, page, data.size, rank)
                )
                if not np.array_equal(data, want):
                    found.append(f"{one.name}.{spec.name} layer {layer} slot {slot}")
    return found


def object_bytes(arena: ArenaSpec, page: int, rank: int = 0) -> bytes:
    """The payload and padding of a page's storage object, built cell by cell."""
    sections = []
    for pools in arena.sections:
        order = [axis for axis in pools[0].axes if axis != "page"]
        cells = []
        for index, block in enumerate(pool_blocks(pools)):
            for layer in block.layers:
                cells += _cells(block, index, layer, page, rank)
        cells.sort(key=lambda cell: [cell[0][axis] for axis in order])
        payload = b"".join(data for _, data in cells)
        sections.append(payload + bytes(-len(payload) % 64))
    return b"".join(sections)


def _cells(
    block: Block, index: int, layer: int, page: int, rank: int
) -> list[tuple[dict[str, int], bytes]]:
    shape = (block.tokens, block.heads, block.cell_bytes)
    size = block.tokens * block.heads * block.cell_bytes
    data = pattern(block.pool, block.buffer, layer, page, size, rank).reshape(shape)
    return [
        (
            {"buffer": index, "layer": layer, "token": token, "head": head},
            data[token, head].tobytes(),
        )
        for token in range(block.tokens)
        for head in range(block.heads)
    ]


def stored(arena: HostArena, slot: int) -> bytes:
    """The bytes that a backend would be handed for a slot, trailer included."""
    addresses = arena.parts.addresses([slot])[0].tolist()
    sizes = arena.parts.num_bytes.tolist()
    return b"".join(ctypes.string_at(a, n) for a, n in zip(addresses, sizes, strict=True))


def receive(arena: HostArena, slot: int, data: bytes) -> None:
    """Write what a backend read into a slot's parts."""
    addresses = arena.parts.addresses([slot])[0].tolist()
    done = 0
    for address, size in zip(addresses, arena.parts.num_bytes.tolist(), strict=True):
        ctypes.memmove(address, data[done : done + size], len(data[done : done + size]))
        done += size
