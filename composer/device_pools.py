"""The device tier: the engine's own tensors, or ones made for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from composer.arena import pool_blocks
from composer.device_buffers import DeviceBuffers, stacked
from composer.free_list import FreeList
from composer.layout import Block
from composer.plan import StackPlan
from composer.pool import PoolEntry, device_view
from composer.spec import PoolSpec


class DevicePoolGroup:
    """All device pools of a stack. Without ``payload`` there are ids and no tensors.

    Attributes:
        tensors: Pool -> buffer -> one tensor ``[layer, row, *shape]``, or one ``[row, *shape]``
            per layer. A page's rows are adjacent: page ``p`` starts at row ``p * rows_per_page``.
        entries: Pools by name.
        spaces: Free list of each index space; the stack owns all ids.
    """

    def __init__(
        self,
        plan: StackPlan,
        device: str = "cpu",
        buffers: DeviceBuffers | None = None,
        *,
        payload: bool = True,
    ) -> None:
        self.plan = plan
        self.device = torch.device(device)
        pools = plan.spec.pools if payload else ()
        self.tensors: DeviceBuffers = buffers if buffers is not None else self._make(pools)
        self.spaces = {
            name: FreeList(f"device {name}", space.num_device_slots)
            for name, space in plan.spaces.items()
        }
        self.entries = {pool.name: self._entry(pool) for pool in pools}

    def _make(self, pools: Sequence[PoolSpec]) -> DeviceBuffers:
        return {
            pool.name: {
                buffer.name: torch.zeros(
                    (len(pool.layers), self._num_rows(pool), *buffer.shape),
                    dtype=getattr(torch, buffer.dtype),
                    device=self.device,
                )
                for buffer in pool.buffers
            }
            for pool in pools
            if pool.buffers
        }

    def _num_rows(self, pool: PoolSpec) -> int:
        return self.plan.spaces[pool.index_space].num_device_slots * pool.rows_per_page

    def _entry(self, pool: PoolSpec) -> PoolEntry:
        num_slots = self.plan.spaces[pool.index_space].num_device_slots
        blocks: dict[str, Block] = {block.buffer: block for block in pool_blocks([pool])}
        return PoolEntry(
            pool,
            {
                name: device_view(stacked(self.tensors[pool.name][name]), block, num_slots)
                for name, block in blocks.items()
                if pool.layers
            },
        )
