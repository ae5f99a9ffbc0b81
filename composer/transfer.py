"""Copies of pages and states between the device and the host tier, for any pair of layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch

from composer.device_pools import DevicePoolGroup
from composer.errors import InvariantError
from composer.group import HostPoolGroup
from composer.objects import POISON
from composer.pool import BufferView, PoolEntry


@dataclass(frozen=True)
class PoolTransfer:
    """Slots of one index space that move between the tiers; its sidecars follow.

    What a movement does not need stays empty; the others have one item per page, in one order.

    Attributes:
        pool: The pool that owns the index space.
        device_ids: Device slots.
        host_ids: Host slots.
        page_hashes: What the slots hold.
        scope: Whose pages they are.
        degraded: Per page, whether its optional pools hold nothing; empty: none is.
    """

    pool: str
    device_ids: Sequence[int] = ()
    host_ids: Sequence[int] = ()
    page_hashes: Sequence[bytes] = ()
    scope: str = "-"
    degraded: Sequence[bool] = ()


@dataclass
class Moved:
    """Bytes and seconds of copies so far."""

    num_bytes: int = 0
    seconds: float = 0.0


class Transfer:
    """Moves slots between the tiers; sidecars follow the ids of their index space.

    With ``poison`` every destination is overwritten before it is read into, so that a test sees a
    read that did not happen. On CUDA the copies run on a stream of their own, from and to pinned
    memory, and a call returns when they are done; nothing waits for the default stream's other
    work.
    """

    def __init__(
        self, device: DevicePoolGroup, host: HostPoolGroup, *, poison: bool = False
    ) -> None:
        self._poison = poison
        self.backed_up, self.loaded = Moved(), Moved()
        self._device, self._host = device, host
        is_cuda = device.device.type == "cuda"
        self._stream = torch.cuda.Stream(device.device) if is_cuda else None
        self._pairs: dict[str, list[tuple[_Pair, int]]] = {}
        for name, entry in host.entries.items():
            pairs = self._pairs.setdefault(entry.spec.index_space, [])
            pairs.append((_Pair(device.entries[name], entry), entry.spec.page_bytes))

    def backup(self, slots: Sequence[PoolTransfer]) -> None:
        """Copy device -> host."""
        self._move(slots, to_host=True, moved=self.backed_up)

    def load_back(self, slots: Sequence[PoolTransfer]) -> None:
        """Copy host -> device."""
        self._move(slots, to_host=False, moved=self.loaded)

    def copy_states(self, source: Mapping[str, int], target: Mapping[str, int]) -> None:
        """Copy device states, one per index space, within the device tier."""
        for space, slot in source.items():
            self._device.spaces[space].check([slot, target[space]])
            for entry in self._device.entries.values():
                if entry.spec.index_space == space:
                    for view in entry.buffers.values():
                        for tensor in view.layers:
                            tensor[:, target[space]].copy_(tensor[:, slot])

    def _move(self, slots: Sequence[PoolTransfer], *, to_host: bool, moved: Moved) -> None:
        for one in slots:
            if len(one.device_ids) != len(one.host_ids):
                raise InvariantError(
                    f"{one.pool}: {len(one.device_ids)} device and {len(one.host_ids)} host slots"
                )
            self._device.spaces[one.pool].check(one.device_ids)
            self._host.spaces[one.pool].check(one.host_ids)
            if self._poison:
                self._overwrite(one.pool, to_host, one.host_ids if to_host else one.device_ids)
        start = perf_counter()
        if self._stream is None:
            self._copy(slots, to_host)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device.device))
            with torch.cuda.stream(self._stream):
                self._copy(slots, to_host)
            self._stream.synchronize()
        moved.seconds += perf_counter() - start
        moved.num_bytes += sum(
            len(one.host_ids) * page_bytes
            for one in slots
            for _, page_bytes in self._pairs.get(one.pool, ())
        )

    def _overwrite(self, space: str, in_host: bool, slots: Sequence[int]) -> None:
        entries = self._host.entries if in_host else self._device.entries
        for entry in entries.values():
            if entry.spec.index_space == space:
                for view in entry.buffers.values():
                    for tensor in view.layers:
                        tensor[:, list(slots)] = POISON

    def _copy(self, slots: Sequence[PoolTransfer], to_host: bool) -> None:
        for one in slots:
            runs = list(_runs(one.device_ids, one.host_ids))
            for pair, _ in self._pairs.get(one.pool, ()):
                pair.copy(runs, to_host)


class _Pair:
    """One pool's buffers in both tiers, as views with equal shapes but for the slot axis.

    Between two places in host memory numpy copies at the speed of memcpy in the calling thread;
    torch would wake a second pool of threads from each worker.
    """

    def __init__(self, device: PoolEntry, host: PoolEntry) -> None:
        self._views: list[tuple[Any, Any]] = []
        self._copy: Callable[[Any, Any], object] = _torch_copy
        for name, view in host.buffers.items():
            if device.buffers.get(name) is not None:
                self._views.extend(_aligned(device.buffers[name], view))
        if all(tensor.device.type == "cpu" for tensor, _ in self._views):
            self._views = [(tensor.numpy(), other.numpy()) for tensor, other in self._views]
            self._copy = np.copyto

    def copy(self, runs: Sequence[tuple[int, int, int]], to_host: bool) -> None:
        copy = self._copy
        for device, host in self._views:
            for device_slot, host_slot, count in runs:
                here = device[:, device_slot : device_slot + count]
                there = host[:, host_slot : host_slot + count]
                if to_host:
                    copy(there, here)
                else:
                    copy(here, there)


def _torch_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _aligned(device: BufferView, host: BufferView) -> list[tuple[torch.Tensor, torch.Tensor]]:
    word_bytes = min(device.word_bytes, host.word_bytes)
    device, host = device.narrowed(word_bytes), host.narrowed(word_bytes)
    if len(device.layers) == len(host.layers) == 1:
        return [(device.layers[0], host.layers[0])]
    return list(zip(device.by_layer(), host.by_layer(), strict=True))


def _runs(device: Sequence[int], host: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First device slot, first host slot and length of stretches adjacent in both tiers."""
    first, second = np.asarray(device, dtype=np.int64), np.asarray(host, dtype=np.int64)
    if not len(first):
        return
    breaks = (np.diff(first) != 1) | (np.diff(second) != 1)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1, [len(first)])).tolist()
    for start, end in pairwise(starts):
        yield int(first[start]), int(second[start]), end - start
