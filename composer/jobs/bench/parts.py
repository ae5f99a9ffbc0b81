"""Parts that the rows are built on: plans of any size, and a store that answers at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from composer.controller import HybridCacheController
from composer.device_pools import DevicePoolGroup
from composer.group import HostPoolGroup
from composer.plan import StackPlan, make_plan
from composer.schema import DeviceConfig, HostConfig, StackConfig, Verify
from composer.spec import ModelSpec, PoolSpec
from composer.storage import PageObjects, StorageBackend

MOST_BYTES = 512 * 2**20  # of one tier: a page or state of some models is large
_BOUNDLESS = "1024TiB"  # a bench sets the slots itself


def with_axes(spec: ModelSpec, axes: Sequence[str]) -> ModelSpec:
    """The same model in another layout."""
    return _with_pools(spec, [replace(pool, axes=tuple(axes)) for pool in spec.pools])


def with_tiny_rows(spec: ModelSpec) -> ModelSpec:
    """The same pools, layers and buffers, with rows of one item: as many runs, hardly any bytes."""
    return _with_pools(
        spec,
        [
            replace(
                pool,
                rows_per_page=1,
                buffers=tuple(
                    replace(one, shape=(1,), full_shape=(1,), split=None) for one in pool.buffers
                ),
            )
            for pool in spec.pools
        ],
    )


def _with_pools(spec: ModelSpec, pools: Sequence[PoolSpec]) -> ModelSpec:
    return replace(spec, pools=tuple(pools))


def sized_plan(
    config: StackConfig, spec: ModelSpec, host_slots: int, device_slots: int
) -> StackPlan:
    """A plan with a number of slots in every index space, whatever the budgets say."""
    plan = make_plan(
        replace(
            config,
            host=HostConfig(_BOUNDLESS),
            device=DeviceConfig(_BOUNDLESS, config.device.name),
        ),
        spec,
    )
    spaces = {
        name: replace(space, num_host_slots=host_slots, num_device_slots=device_slots)
        for name, space in plan.spaces.items()
    }
    return replace(plan, spaces=spaces)


class NullBackend:
    """Keeps nothing and answers at once, so that what is measured is our own cost.

    It takes addresses as the lists that client libraries want, and a get leaves the trailers of
    the last put in place, as a store would.
    """

    def __init__(self, *, knows_all: bool) -> None:
        self._knows_all = knows_all
        self._trailers: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]] = []

    def keep_trailers(self, trailers: npt.NDArray[np.uint8]) -> None:
        """Remember the trailers that gets leave, ``[slots, bytes]``, as they are now."""
        self._trailers.append((trailers, trailers.copy()))

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        del buffers

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        return np.full(len(keys), self._knows_all)

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        objects.addresses.tolist()
        return np.ones(len(objects.keys), dtype=np.bool_)

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        objects.addresses.tolist()
        for trailers, kept in self._trailers:
            np.copyto(trailers, kept)
        return np.full(len(objects.keys), objects.object_bytes)

    def keys(self, prefix: str = "") -> list[str]:
        del prefix
        return []

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        return np.zeros(len(keys), dtype=np.int64)

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        del force
        return np.ones(len(keys), dtype=np.bool_)

    def counters(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._trailers.clear()


def make_controller(
    plan: StackPlan, backend: StorageBackend, executor: Executor, verify: Verify
) -> HybridCacheController:
    """A controller with every host slot taken, on the CPU."""
    group = HostPoolGroup(plan)
    for free_list in group.spaces.values():
        free_list.allocate(free_list.num_slots)
    return HybridCacheController(DevicePoolGroup(plan), group, backend, executor, verify=verify)


def page_hashes(count: int, seed: int = 0) -> list[bytes]:
    """Hashes of pages that nobody has."""
    digits: Any = np.random.default_rng(seed).bytes(32 * count)
    return [digits[start : start + 32] for start in range(0, len(digits), 32)]


def most_pages(spec: ModelSpec, pages: int) -> int:
    """``pages``, or as many as fit into the memory that a bench takes for a tier."""
    return max(1, min(pages, MOST_BYTES // max(sum(pool.page_bytes for pool in spec.pools), 1)))


def memcpy(
    num_bytes: int, tier_bytes: int, device: torch.device, *, to_host: bool
) -> Callable[[], None]:
    """Copies stretches of ``num_bytes`` between two tiers of ``tier_bytes``, one after another."""
    is_cuda = device.type == "cuda"
    near = torch.ones(tier_bytes, dtype=torch.uint8, device=device)
    far = torch.ones(tier_bytes, dtype=torch.uint8, pin_memory=is_cuda)
    source, target = (near, far) if to_host else (far, near)
    stretches = cycle(range(0, tier_bytes - num_bytes + 1, num_bytes))

    def copy() -> None:
        at = next(stretches)
        target[at : at + num_bytes].copy_(source[at : at + num_bytes], non_blocking=True)
        if is_cuda:
            torch.cuda.synchronize(device)

    return copy


def hashing_alone(tokens: npt.NDArray[np.int64], page_size: int) -> Callable[[], None]:
    """SHA-256 of each page's tokens, and nothing else."""
    data, step = tokens.tobytes(), page_size * tokens.itemsize

    def call() -> None:
        for start in range(0, len(data) - step + 1, step):
            hashlib.sha256(data[start : start + step]).digest()

    return call
