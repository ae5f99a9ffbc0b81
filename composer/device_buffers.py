"""An engine's own device tensors, checked against the schema before anything is built on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from composer.errors import Problems, did_you_mean
from composer.spec import BufferSpec, ModelSpec, PoolSpec

Tensors = torch.Tensor | Sequence[torch.Tensor]
DeviceBuffers = Mapping[str, Mapping[str, Tensors]]  # pool -> buffer -> stacked, or per layer


def stacked(tensors: Tensors) -> list[torch.Tensor]:
    """One tensor ``[layer, row, *shape]``, or one ``[1, row, *shape]`` per layer."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor.unsqueeze(0) for tensor in tensors]


def check_device_buffers(spec: ModelSpec, buffers: DeviceBuffers, device: str) -> dict[str, int]:
    """Check an engine's tensors against the schema.

    Returns:
        Slots of each index space that the tensors hold.

    Raises:
        ConfigError: A tensor is missing, or the schema does not claim it, or it has another
            shape, dtype or device; all of them at once.
    """
    problems = Problems()
    known = {pool.name: pool for pool in spec.pools if pool.buffers}
    for name in sorted(set(buffers) - set(known)):
        problems.add(
            f"device_buffers.{name}", "no pool of the schema claims it", did_you_mean(name, known)
        )
    slots: dict[str, dict[str, int]] = {}
    for pool in known.values():
        given = buffers.get(pool.name, {})
        _check_coverage(problems, pool, given)
        for key, num_slots in _num_slots(problems, pool, given, device):
            slots.setdefault(pool.index_space, {})[key] = num_slots
    problems.raise_if_any()
    for space, counts in slots.items():
        text = ", ".join(f"{key} {count}" for key, count in counts.items())
        if len(set(counts.values())) > 1:
            problems.add("device_buffers", f"the slots of index space {space} differ: {text}")
        elif min(counts.values()) < 1:
            problems.add("device_buffers", f"index space {space} holds not one slot: {text}")
    problems.raise_if_any()
    return {space: min(counts.values()) for space, counts in slots.items()}


def _check_coverage(problems: Problems, pool: PoolSpec, given: Mapping[str, Tensors]) -> None:
    names = {buffer.name for buffer in pool.buffers}
    # A pipeline stage may own no layer of a pool, and then has no tensor to hand in.
    for name in sorted(names - set(given)) if pool.layers else ():
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


def _num_slots(
    problems: Problems, pool: PoolSpec, given: Mapping[str, Tensors], device: str
) -> Iterator[tuple[str, int]]:
    """Key of each buffer and the slots that it holds, where the pool has layers here."""
    for buffer in pool.buffers:
        if buffer.name in given:
            key = f"device_buffers.{pool.name}.{buffer.name}"
            rows = _num_rows(problems, key, pool, buffer, given[buffer.name], device)
            if pool.layers:
                yield key, rows // pool.rows_per_page


def _num_rows(
    problems: Problems,
    key: str,
    pool: PoolSpec,
    buffer: BufferSpec,
    tensors: Tensors,
    device: str,
) -> int:
    """Rows per layer, after every fault of the tensors is added to ``problems``."""
    parts = stacked(tensors)
    if any(part.ndim < 2 for part in parts):
        expected = f"[layer, row, {', '.join(map(str, buffer.shape))}], or one without layer each"
        problems.add(key, f"has tensors of {[part.ndim for part in parts]} axes, not {expected}")
        return 0
    num_layers = parts[0].shape[0] if isinstance(tensors, torch.Tensor) else len(parts)
    if num_layers != len(pool.layers):
        problems.add(key, f"has {num_layers} layers, the schema {len(pool.layers)}: {pool.layers}")
    for fault in dict.fromkeys(f for part in parts for f in _faults(part, buffer, device)):
        problems.add(key, fault)
    rows = {part.shape[1] for part in parts}
    if len(rows) > 1:
        problems.add(key, f"has layers of {sorted(rows)} rows")
    return min(rows, default=0)


def _faults(part: torch.Tensor, buffer: BufferSpec, device: str) -> Iterator[str]:
    if tuple(part.shape[2:]) != buffer.shape:
        yield f"has rows of shape {tuple(part.shape[2:])}, the schema {buffer.shape}"
    elif part.numel() and not part[0, 0].is_contiguous():
        yield "has rows that are not contiguous"
    if str(part.dtype) != f"torch.{buffer.dtype}":
        yield f"is {part.dtype}, the schema says {buffer.dtype}"
    wanted = torch.device(device)
    if part.device.type != wanted.type or wanted.index not in (None, part.device.index or 0):
        yield f"lies on {part.device}, and device.name is {device}"
