"""Copies of pages and states between the device and the host tier, for any pair of layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import torch

from composer.device_pools import DevicePoolGroup
from composer.errors import InvariantError
from composer.group import HostPoolGroup
from composer.objects import POISON
from composer.pool import BufferView, PoolEntry
from composer.record import record


@record
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
    """Bytes, seconds and calls of copies so far."""

    num_bytes: int = 0
    seconds: float = 0.0
    num_calls: int = 0


class Transfer:
    """Moves slots between the tiers; sidecars follow the ids of their index space.

    With ``poison`` every destination is overwritten before it is read into, so that a test sees a
    read that did not happen. On CUDA the copies of each direction run on a stream of their own,
    from and to pinned memory, behind what the callers' streams had been given at the last
    ``fence``; the default stream is never waited for, and waits for nothing.
    """

    def __init__(
        self, device: DevicePoolGroup, host: HostPoolGroup, *, poison: bool = False
    ) -> None:
        self._poison = poison
        self.backed_up, self.loaded = Moved(), Moved()
        self._device, self._host = device, host
        self._streams: dict[bool, Any] = {True: None, False: None}  # by whether to the host
        if device.device.type == "cuda":
            self._streams = {to_host: torch.cuda.Stream(device.device) for to_host in (True, False)}
        self._fences: dict[int, Any] = {}  # stream of a caller -> what it had been given
        self._lock = Lock()
        spaces = host.plan.spaces.items()
        self._payload_bytes = {n: sum(a.payload_bytes for a in one.arenas) for n, one in spaces}
        self._pairs: dict[str, list[_Pair]] = {}
        for name, entry in host.entries.items():
            pairs = self._pairs.setdefault(entry.spec.index_space, [])
            pairs.append(_Pair(device.entries[name], entry))

    def fence(self) -> None:
        """Let later copies wait for all that the caller's stream has been given so far."""
        if self._streams[True] is not None:
            stream = torch.cuda.current_stream(self._device.device)
            event = stream.record_event()
            with self._lock:
                self._fences[stream.cuda_stream] = event

    def backup(self, slots: Sequence[PoolTransfer]) -> None:
        """Copy device -> host."""
        self._move(slots, to_host=True, moved=self.backed_up)

    def load_back(self, slots: Sequence[PoolTransfer]) -> None:
        """Copy host -> device."""
        self._move(slots, to_host=False, moved=self.loaded)

    def load_by_layer(self, slots: Sequence[PoolTransfer]) -> LayeredLoad:
        """The same, in steps of one layer; the slots are checked now."""
        self.check(slots)
        return LayeredLoad(self, slots)

    def copy_states(self, source: Mapping[str, int], target: Mapping[str, int]) -> None:
        """Copy device states, one per index space, within the device tier."""
        for space, slot in source.items():
            self._device.spaces[space].check([slot, target[space]])
            for entry in self._device.entries.values():
                if entry.spec.index_space == space:
                    for view in entry.buffers.values():
                        for tensor in view.layers:
                            tensor[:, target[space]].copy_(tensor[:, slot])

    def pairs(self, space: str) -> Sequence[_Pair]:
        """The pools of one index space that have rows in both tiers."""
        return self._pairs.get(space, ())

    def check(self, slots: Sequence[PoolTransfer]) -> None:
        """Refuse slots that are not taken, or are not as many in both tiers."""
        for one in slots:
            if len(one.device_ids) != len(one.host_ids):
                raise InvariantError(
                    f"{one.pool}: {len(one.device_ids)} device and {len(one.host_ids)} host slots"
                )
            self._device.spaces[one.pool].check(one.device_ids)
            self._host.spaces[one.pool].check(one.host_ids)

    def on_stream(self, *, to_host: bool) -> AbstractContextManager[Any]:
        """Within it, copies go to the direction's stream, behind all fences."""
        stream = self._streams[to_host]
        if stream is None:
            return nullcontext()
        with self._lock:
            fences = list(self._fences.values())
        for event in fences:
            stream.wait_event(event)
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def mark(self, *, to_host: bool) -> Any:
        """What is done when the copies given so far are; None: they are done."""
        stream = self._streams[to_host]
        return None if stream is None else stream.record_event()

    def overwrite(self, slots: Sequence[PoolTransfer], *, to_host: bool) -> None:
        """Poison the destinations, where that was asked for."""
        for one in slots if self._poison else ():
            ids = list(one.host_ids if to_host else one.device_ids)
            for entry in (self._host if to_host else self._device).entries.values():
                if entry.spec.index_space == one.pool:
                    for view in entry.buffers.values():
                        for tensor in view.layers:
                            tensor[:, ids] = POISON

    def num_bytes(self, slots: Sequence[PoolTransfer]) -> int:
        """Payload of some slots."""
        payload = self._payload_bytes
        return sum(len(one.host_ids) * payload[one.pool] for one in slots)

    def _move(self, slots: Sequence[PoolTransfer], *, to_host: bool, moved: Moved) -> None:
        self.check(slots)
        start = perf_counter()
        with self.on_stream(to_host=to_host):
            self.overwrite(slots, to_host=to_host)
            for one in slots:
                pairs = self.pairs(one.pool)
                runs = list(_runs(one.device_ids, one.host_ids)) if pairs else []
                for pair in pairs:
                    pair.copy(runs, to_host)
        done = self.mark(to_host=to_host)
        if done is not None:
            done.synchronize()
        moved.seconds += perf_counter() - start
        moved.num_bytes += self.num_bytes(slots)
        moved.num_calls += 1


class LayeredLoad:
    """Copies host -> device one layer at a time; any thread may take a step, one at a time.

    Attributes:
        layers: Global numbers of the layers with rows in these slots, ascending.
    """

    def __init__(self, transfer: Transfer, slots: Sequence[PoolTransfer]) -> None:
        self._transfer, self._slots = transfer, slots
        self._runs = [(one.pool, list(_runs(one.device_ids, one.host_ids))) for one in slots]
        pairs = [pair for one in slots for pair in transfer.pairs(one.pool)]
        self.layers = tuple(sorted({layer for pair in pairs for layer in pair.by_layer}))
        self._started = False

    def copy(self, layer: int) -> Any:
        """Copy a layer's rows of all pools.

        Returns:
            The CUDA event after which they are there; None: they are.
        """
        start = perf_counter()
        with self._transfer.on_stream(to_host=False):
            if not self._started:
                self._transfer.overwrite(self._slots, to_host=False)
                self._started = True
            for space, runs in self._runs:
                for pair in self._transfer.pairs(space):
                    pair.copy_layer(layer, runs)
        self._transfer.loaded.seconds += perf_counter() - start
        return self._transfer.mark(to_host=False)

    def end(self) -> None:
        """Return when nothing of it is under way any more."""
        done = self._transfer.mark(to_host=False)
        if done is not None:
            done.synchronize()
        self._transfer.loaded.num_bytes += self._transfer.num_bytes(self._slots)
        self._transfer.loaded.num_calls += 1


class _Pair:
    """One pool's buffers in both tiers, as views with equal shapes but for the slot axis.

    Between two places in host memory numpy copies at the speed of memcpy in the calling thread;
    torch would wake a second pool of threads from each worker.
    """

    def __init__(self, device: PoolEntry, host: PoolEntry) -> None:
        self._layers = host.spec.layers
        self._views: list[tuple[Any, Any]] = []
        self._copy: Callable[[Any, Any], object] = _torch_copy
        for name, view in host.buffers.items():
            if device.buffers.get(name) is not None:
                self._views.extend(_aligned(device.buffers[name], view))
        if all(tensor.device.type == "cpu" for tensor, _ in self._views):
            self._views = [(tensor.numpy(), other.numpy()) for tensor, other in self._views]
            self._copy = np.copyto

    @cached_property
    def by_layer(self) -> dict[int, list[tuple[Any, Any]]]:
        """Layer -> its buffers' views, with a first axis of length 1; none where none has rows.

        A buffer's views are one for all layers, or one each, in the order of the layers.
        """
        found: dict[int, list[tuple[Any, Any]]] = {layer: [] for layer in self._layers}
        at = 0
        for device, host in self._views:
            for index in range(len(host)):
                layer = self._layers[at % len(self._layers)]
                found[layer].append((device[index : index + 1], host[index : index + 1]))
                at += 1
        return {layer: views for layer, views in found.items() if views}

    def copy(self, runs: Sequence[tuple[int, int, int]], to_host: bool) -> None:
        self._copy_views(self._views, runs, to_host)

    def copy_layer(self, layer: int, runs: Sequence[tuple[int, int, int]]) -> None:
        """Copy one layer host -> device."""
        self._copy_views(self.by_layer.get(layer, ()), runs, False)

    def _copy_views(
        self,
        views: Sequence[tuple[Any, Any]],
        runs: Sequence[tuple[int, int, int]],
        to_host: bool,
    ) -> None:
        copy = self._copy
        for device, host in views:
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
    start, count = 0, len(device)
    for at in range(1, count + 1):
        if at == count or device[at] != device[at - 1] + 1 or host[at] != host[at - 1] + 1:
            yield device[start], host[start], at - start
            start = at
