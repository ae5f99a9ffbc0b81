"""The device tier: the engine's own tensors, or ones made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import torch

from composer.arena import pool_blocks
from composer.errors import ConfigError, Problems, did_you_mean
from composer.free_list import FreeList
from composer.layout import Block
from composer.plan import StackPlan
from composer.pool import PoolEntry, device_view
from composer.spec import BufferSpec, ModelSpec, PoolSpec

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
DeviceBuffers = Mapping[str, Mapping[str, Tensors]]  # pool -> buffer -> stacked, or per layer


class DevicePoolGroup:
    """All device pools of a stack.

    Attributes:
        tensors: Pool -> buffer -> one tensor ``[layer, row, *shape]``, or one ``[row, *shape]``
            per layer. A page's rows are adjacent: page ``p`` starts at row ``p * rows_per_page``.
        entries: Pools by name.
        spaces: Free list of each index space; the stack owns all ids.
    """

    def __init__(
        self, plan: StackPlan, device: str = "cpu", buffers: DeviceBuffers | None = None
    ) -> None:
        self.plan = plan
        self.device = torch.device(device)
        self.tensors: DeviceBuffers = buffers if buffers is not None else self._make()
        self.spaces = {
            name: FreeList(f"device {name}", space.num_device_slots)
            for name, space in plan.spaces.items()
        }
        self.entries = {pool.name: self._entry(pool) for pool in plan.spec.pools}

    def _make(self) -> DeviceBuffers:
        return {
            pool.name: {
                buffer.name: torch.zeros(
                    (len(pool.layers), self._num_rows(pool), *buffer.shape),
                    dtype=getattr(torch, buffer.dtype),
                    device=self.device,
                )
                for buffer in pool.buffers
            }
            for pool in self.plan.spec.pools
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
                name: device_view(_stacked(self.tensors[pool.name][name]), block, num_slots)
                for name, block in blocks.items()
                if pool.layers
            },
        )


def _stacked(tensors: Tensors) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor.unsqueeze(0) for tensor in tensors]


def check_device_buffers(
    spec: ModelSpec, buffers: DeviceBuffers, device: str
) -> dict[str, int]:
    """Check an engine's tensors against the schema.

    Returns:
        Slots of each index space that the tensors hold.

    Raises:
        ConfigError: A tensor is missing, or is not claimed by the schema, or has another shape,
            dtype or device; all of them at once.
    """
    problems = Problems()
    known = {pool.name: pool for pool in spec.pools if pool.buffers}
    for name in buffers:
        if name not in known:
            problems.add(
                f"device_buffers.{name}",
                "no pool of the schema claims it",
                did_you_mean(name, known),
            )
    rows: dict[str, dict[str, int]] = {}
    for pool in known.values():
        given = buffers.get(pool.name, {})
        _check_coverage(problems, pool, given)
        for buffer in pool.buffers:
            if buffer.name in given:
                key = f"device_buffers.{pool.name}.{buffer.name}"
                count = _check_tensors(problems, key, pool, buffer, given[buffer.name], device)
                if count is not None:
                    slots = count // pool.rows_per_page
                    rows.setdefault(pool.index_space, {})[key] = slots
    for space, counts in rows.items():
        if len(set(counts.values())) > 1:
            text = ", ".join(f"{key} {count}" for key, count in counts.items())
            problems.add("device_buffers", f"pools of index space {space} hold {text} slots")
    problems.raise_if_any()
    slots = {space: min(counts.values()) for space, counts in rows.items()}
    for space, count in slots.items():
        if count < 1:
            raise ConfigError.of("device_buffers", f"index space {space} holds not one slot")
    return slots


def _check_coverage(problems: Problems, pool: PoolSpec, given: Mapping[str, Tensors]) -> None:
    names = {buffer.name for buffer in pool.buffers}
    for name in sorted(names - set(given)):
        problems.add(
            f"device_buffers.{pool.name}.{name}",
            "is missing",
            "Hand in every buffer that the schema names",
        )
    for name in sorted(set(given) - names - set(pool.exclude or {})):
        problems.add(
            f"device_buffers.{pool.name}.{name}",
            f"the schema's pool '{pool.name}' does not claim it",
            f"Add it to pools.{pool.name}.buffers, or to pools.{pool.name}.exclude with a reason",
        )


def _check_tensors(
    problems: Problems,
    key: str,
    pool: PoolSpec,
    buffer: BufferSpec,
    tensors: Tensors,
    device: str,
) -> int | None:
    """Rows per layer; None after a problem."""
    parts = _stacked(tensors)
    found = len(problems.found)
    num_layers = parts[0].shape[0] if isinstance(tensors, torch.Tensor) else len(parts)
    if num_layers != len(pool.layers):
        problems.add(key, f"has {num_layers} layers, the schema {len(pool.layers)} {pool.layers}")
    for part in parts:
        if tuple(part.shape[2:]) != buffer.shape:
            problems.add(
                key, f"has rows of shape {tuple(part.shape[2:])}, the schema {buffer.shape}"
            )
        elif part.numel() and not part[0, 0].is_contiguous():
            problems.add(key, "has rows that are not contiguous")
        if str(part.dtype) != f"torch.{buffer.dtype}":
            problems.add(key, f"is {part.dtype}, the schema says {buffer.dtype}")
        if part.device.type != torch.device(device).type:
            problems.add(key, f"lies on {part.device}, and device.name is {device}")
        if len(problems.found) > found:
            return None
    rows = {part.shape[1] for part in parts}
    if len(rows) > 1:
        problems.add(key, f"has layers of {sorted(rows)} rows")
        return None
    return rows.pop() if rows else None
