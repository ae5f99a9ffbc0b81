"""Copies between the tiers, in every layout, against one memcpy of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from composer.config_overlay import layout_presets
from composer.device_pools import DevicePoolGroup
from composer.group import HostPoolGroup
from composer.jobs.bench.frame import GB_PER_S, Case, Cases, Target
from composer.jobs.bench.parts import sized_plan, with_axes
from composer.resolve import resolve
from composer.schema import StackConfig
from composer.spec import ModelSpec
from composer.transfer import PoolTransfer, Transfer

MOST_BYTES = 512 * 2**20  # of one tier: a page or state of some models is large
TARGET, TARGET_INTERLEAVED = Target(ratio=0.9), Target(ratio=0.7)


def copies(config: StackConfig, pages: int) -> Cases:
    """Cases for three numbers of pages up to ``pages``, both directions, all layouts."""
    spec = resolve(config)
    page_bytes = sum(pool.page_bytes for pool in spec.pools)
    most = max(1, min(pages, MOST_BYTES // max(page_bytes, 1)))
    for name, axes in layout_presets().items():
        yield from _of_layout(config, name, with_axes(spec, axes), most)


def _of_layout(config: StackConfig, layout: str, spec: ModelSpec, most: int) -> Cases:
    plan = sized_plan(config, spec, most, most)
    device = DevicePoolGroup(plan, config.device.name)
    host = HostPoolGroup(plan, pin_memory=device.device.type == "cuda")
    for free_list in (*device.spaces.values(), *host.spaces.values()):
        free_list.allocate(most)
    transfer = Transfer(device, host)
    # a token's rows are not adjacent where other layers or heads stand between them
    axes = layout_presets()[layout]
    interleaved = axes.index("token") < axes.index("layer") or axes.index("head") < axes.index(
        "token"
    )
    for count in sorted({max(1, most // 16), max(1, most // 4), most}):
        slots = _scattered(list(plan.spaces), count, most)
        num_bytes = count * sum(pool.page_bytes for pool in spec.pools if pool.prefix_cacheable)
        for name, move in (("backup", transfer.backup), ("load_back", transfer.load_back)):
            yield Case(
                name=f"{name} {layout}",
                size=f"{count} pages",
                unit=GB_PER_S,
                ours=partial(move, slots),
                reference=_memcpy(num_bytes, device.device, to_host=name == "backup"),
                reference_name="memcpy",
                target=TARGET_INTERLEAVED if interleaved else TARGET,
                amount=num_bytes,
            )


def _scattered(spaces: list[str], count: int, most: int) -> list[PoolTransfer]:
    """Slots no two of which are neighbours in both tiers, as in a cache that has run for long."""
    order = np.random.default_rng(0).permutation(most)[:count].tolist()
    return [PoolTransfer(space, device_ids=list(range(count)), host_ids=order) for space in spaces]


def _memcpy(num_bytes: int, device: torch.device, *, to_host: bool) -> Callable[[], object]:
    is_cuda = device.type == "cuda"
    near = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    far = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)
    source, target = (near, far) if to_host else (far, near)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        if is_cuda:
            torch.cuda.synchronize(device)

    return copy
