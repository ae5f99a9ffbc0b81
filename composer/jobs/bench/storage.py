"""Storage through all of our layers, against the raw client making the same calls."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np

from composer.arena import TRAILER_BYTES
from composer.errors import BackendError
from composer.jobs.bench.frame import GB_PER_S, Case, Cases, Target
from composer.jobs.bench.parts import make_controller, page_hashes, sized_plan
from composer.objects import ArenaObjects
from composer.registry import BACKENDS
from composer.schema import PoolHitPolicy, StackConfig, Unit, Verify
from composer.spec import BufferSpec, ModelSpec, PoolSpec
from composer.storage import PageObjects
from composer.transfer import PoolTransfer

LIBRARY = "mooncake"
_TARGETS = {Verify.identity: 0.95, Verify.checksum: 0.6}
_SMALL, _SMALL_TARGET = 2**20, 0.8  # of identity, for objects below 1 MiB
_POOL = "probe"


def skip_reason() -> str | None:
    """Why there is nothing to measure; None where there is."""
    if importlib.util.find_spec(LIBRARY) is None:
        return "the Mooncake library is not installed"
    return None


def storage(config: StackConfig, batch_bytes: int) -> Cases:
    """Objects of three sizes written and read, with both ways to verify."""
    settings = {"segment": f"{max(4 * batch_bytes, 256 * 2**20)}", "segment_in": "self"}
    with (
        closing(BACKENDS.build(LIBRARY, settings)) as backend,
        ThreadPoolExecutor(1) as executor,
    ):
        for object_bytes in (64 * 2**10, 2**20, 4 * 2**20):
            for verify in Verify:
                sized = _Sized(config, backend, executor, object_bytes, batch_bytes, verify)
                yield from sized.cases()


class _Sized:
    """One size of objects and one way to verify."""

    def __init__(
        self,
        config: StackConfig,
        backend: Any,
        executor: Executor,
        object_bytes: int,
        batch_bytes: int,
        verify: Verify,
    ) -> None:
        self._object_bytes, self._verify = object_bytes, verify
        self._count = max(1, batch_bytes // object_bytes)
        plan = sized_plan(config, _one_pool(object_bytes), self._count, 1)
        self._controller = make_controller(plan, backend, executor, verify)
        (arena,) = self._controller.host.arenas.values()
        self._objects = ArenaObjects(arena, checksum=verify is Verify.checksum)
        arena.memory.fill_(7)
        self._backend, self._client = backend, backend.client  # what it calls, without it
        self._seed = 0
        self._renew()

    def cases(self) -> Cases:
        target = _TARGETS[self._verify]
        if self._verify is Verify.identity and self._object_bytes < _SMALL:
            target = _SMALL_TARGET
        calls: dict[str, tuple[Callable[[], object], Callable[[], object], Any]] = {
            "write_storage": (self._put, self._raw_put, self._renew),
            "prefetch": (self._get, self._raw_get, None),
        }
        for name, (ours, reference, before) in calls.items():
            if before is None:
                self._renew()
                self._put()
            yield Case(
                name=f"{name} {self._verify.name}",
                size=f"{self._count} x {self._object_bytes // 1024} KiB",
                unit=GB_PER_S,
                ours=ours,
                reference=reference,
                reference_name="raw client",
                target=Target(ratio=target),
                amount=self._count * self._object_bytes,
                before=before,
            )
        self._remove()

    def _renew(self) -> None:
        """Other pages than before, which the store does not have; the earlier ones are removed."""
        self._remove()
        self._seed += 1
        hashes = page_hashes(self._count, self._seed)
        slots = list(range(self._count))
        self._moved = [PoolTransfer(_POOL, host_ids=slots, page_hashes=hashes)]
        self._sealed = self._objects.seal(self._moved[0].scope, slots, hashes)

    def _remove(self) -> None:
        if self._seed:
            self._client.store.batch_remove(self._sealed.keys, True)  # leased or not

    def _put(self) -> None:
        _demand(self._controller.write_storage(self._moved)[0].ok)

    def _get(self) -> None:
        _demand(self._controller.prefetch(self._moved)[0].ok)

    def _raw_put(self) -> None:
        keys, pointers, sizes = _raw(self._sealed)
        self._client.store.batch_is_exist(keys)
        codes = self._client.store.batch_put_from(keys, pointers, sizes, self._client.config())
        _demand(np.equal(codes, 0))

    def _raw_get(self) -> None:
        keys, pointers, sizes = _raw(self._sealed)
        codes = self._client.store.batch_get_into(keys, pointers, sizes)
        _demand(np.equal(codes, sizes))


def _one_pool(object_bytes: int) -> ModelSpec:
    """A model whose storage objects have this size, trailer included."""
    row = (object_bytes - TRAILER_BYTES,)
    pool = PoolSpec(
        name=_POOL,
        unit=Unit.page,
        layers=(0,),
        all_layers=(0,),
        buffers=(BufferSpec("bytes", row, row, "uint8"),),
        index_space=_POOL,
        hit_policy=PoolHitPolicy.all_pages,
        axes=("page", "buffer", "layer", "token", "head"),
    )
    return ModelSpec("bench", 64, 1, (pool,), (), _POOL, (0, 1), {"bench": str(object_bytes)})


def _raw(sealed: PageObjects) -> tuple[list[str], list[int], list[int]]:
    return sealed.keys, sealed.addresses.ravel().tolist(), [sealed.object_bytes] * len(sealed.keys)


def _demand(ok: Any) -> None:
    """A call that fails takes another time than one that does its work.

    Raises:
        BackendError: Objects were refused.
    """
    if not np.all(ok):
        raise BackendError(f"the store refused {int(np.size(ok) - np.sum(ok))} of {np.size(ok)}")
