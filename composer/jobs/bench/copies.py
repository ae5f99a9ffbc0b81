"""Copies between the tiers, in every layout, against one memcpy of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import numpy as np

from composer.config_overlay import layout_presets
from composer.device_pools import DevicePoolGroup
from composer.group import HostPoolGroup
from composer.jobs.bench.frame import GB_PER_S, Case, Cases, Target
from composer.jobs.bench.params import Params, three_sizes
from composer.jobs.bench.parts import memcpy, most_pages, sized_plan, with_axes
from composer.resolve import resolve
from composer.schema import StackConfig
from composer.spec import ModelSpec
from composer.transfer import PoolTransfer, Transfer

TARGET, TARGET_INTERLEAVED = Target(ratio=0.9), Target(ratio=0.7)


def copies(config: StackConfig, params: Params) -> Cases:
    """Cases for three numbers of pages, both directions, all layouts or the chosen one."""
    spec = resolve(config)
    most = most_pages(spec, params.pages)
    for name, axes in layout_presets().items():
        if params.all_layouts or axes == tuple(config.layout.axes):
            yield from _of_layout(config, name, with_axes(spec, axes), most)


def _of_layout(config: StackConfig, layout: str, spec: ModelSpec, most: int) -> Cases:
    plan = sized_plan(config, spec, most, most)
    device = DevicePoolGroup(plan, config.device.name)
    host = HostPoolGroup(plan, pin_memory=device.device.type == "cuda")
    for free_list in (*device.spaces.values(), *host.spaces.values()):
        free_list.allocate(most)
    transfer = Transfer(device, host)
    transfer.backup(_scattered(list(plan.spaces), most, most)[0])  # touches all of the memory
    # a token's rows are not adjacent where other layers or heads stand between them
    axes = layout_presets()[layout]
    interleaved = axes.index("token") < axes.index("layer") or axes.index("head") < axes.index(
        "token"
    )
    for count in three_sizes(most):
        groups = _scattered(list(plan.spaces), count, most)
        num_bytes = transfer.num_bytes(groups[0])
        for name, move in (("backup", transfer.backup), ("load_back", transfer.load_back)):
            tier_bytes, to_host = num_bytes * len(groups), name == "backup"
            yield Case(
                name=f"{name} {layout}",
                size=f"{count} pages",
                unit=GB_PER_S,
                ours=_in_turn(move, groups),
                reference=memcpy(num_bytes, tier_bytes, device.device, to_host=to_host),
                reference_name="memcpy",
                target=TARGET_INTERLEAVED if interleaved else TARGET,
                amount=num_bytes,
            )


def _scattered(spaces: list[str], count: int, most: int) -> list[list[PoolTransfer]]:
    """Groups of slots, few of them neighbours in both tiers, as in a cache that has run for long.

    Together they are most of the tier, so that no call finds its bytes in a processor's cache.
    """
    order = np.random.default_rng(0).permutation(most).tolist()
    starts = range(0, most - count + 1, count)
    ids = [(list(range(at, at + count)), order[at : at + count]) for at in starts]
    return [[PoolTransfer(space, here, there) for space in spaces] for here, there in ids]


def _in_turn(
    move: Callable[[list[PoolTransfer]], None], groups: list[list[PoolTransfer]]
) -> Callable[[], None]:
    following = partial(next, cycle(groups))
    return lambda: move(following())
