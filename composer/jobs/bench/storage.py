"""Storage through all of our layers, against the raw client making the same calls.

Ours are production's: bounded in time, each on a thread that can be left behind. The raw client's
run in the caller's thread, and nothing would end them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from composer.arena import TRAILER_BYTES
from composer.config_overlay import layout_presets
from composer.errors import BackendError
from composer.jobs.bench.frame import GB_PER_S, Case, Cases, Target
from composer.jobs.bench.params import Params
from composer.jobs.bench.parts import make_controller, page_hashes, sized_plan
from composer.objects import ArenaObjects
from composer.registry import BACKENDS
from composer.schema import PoolHitPolicy, StackConfig, Unit, Verify
from composer.spec import BufferSpec, ModelSpec, PoolSpec
from composer.storage import PageObjects
from composer.transfer import PoolTransfer

LIBRARY = "mooncake"
OBJECT_BYTES = (64 * 2**10, 2**20, 4 * 2**20)
SMALL_BYTES = 2**20  # objects below have a target of their own
_POOL, _NUM_LAYERS = "probe", 61


@dataclass(frozen=True)
class Way:
    """A way to a store.

    Attributes:
        segment_in: Whose memory holds the objects: ``self``, or ``holder``, which is over TCP.
        checksum: What share of the raw client's speed there should be with checksums,
        identity: and without.
        small_identity: The same for small objects; None: they have no targets at all.
        share: Which share of a batch one call moves.
    """

    segment_in: str
    layout: str
    checksum: float
    identity: float = 0.95
    small_identity: float | None = 0.8
    share: float = 1.0

    @property
    def name(self) -> str:
        place = "local" if self.segment_in == "self" else "TCP"
        return f"{place}, {self.layout}"

    def target(self, verify: Verify, object_bytes: int) -> Target | None:
        """What share of the raw client's speed there should be."""
        is_small = object_bytes < SMALL_BYTES
        if is_small and self.small_identity is None:
            return None
        if verify is Verify.checksum:
            return Target(ratio=self.checksum)
        return Target(ratio=self.small_identity if is_small else self.identity)


WAYS = (
    Way("self", "page_envelope", checksum=0.6),
    Way("self", "layer_first", checksum=0.45, small_identity=None),  # 1 KiB a piece
    Way("holder", "page_envelope", checksum=0.9, share=0.25),
)


def skip_reason() -> str | None:
    """Why there is nothing to measure; None where there is."""
    if importlib.util.find_spec(LIBRARY) is None:
        return "the Mooncake library is not installed"
    return None


def storage(config: StackConfig, params: Params) -> Cases:
    """Objects of three sizes written and read, in our memory and over TCP, verified in both ways.

    Raises:
        BackendError: The store does not start, or does not do its work.
    """
    for way in WAYS:
        batch_bytes = max(1, round(params.storage_batch_bytes * way.share))
        with _opened(way, batch_bytes) as backend, ThreadPoolExecutor(1) as executor:
            for object_bytes in OBJECT_BYTES:
                for verify in Verify:
                    spec = _one_pool(object_bytes, way.layout)
                    count = max(1, batch_bytes // object_bytes)
                    sized = _Sized(config, spec, count, backend, executor, verify)
                    yield from sized.cases(way, object_bytes)


@contextmanager
def _opened(way: Way, batch_bytes: int) -> Iterator[Any]:
    """A store of our own, with room for some batches."""
    segment = str(max(4 * batch_bytes, 256 * 2**20))
    backend = BACKENDS.build(LIBRARY, {"segment": segment, "segment_in": way.segment_in})
    try:
        yield backend
    finally:
        backend.close()


class _Sized:
    """One size of objects and one way to verify."""

    def __init__(
        self,
        config: StackConfig,
        spec: ModelSpec,
        count: int,
        backend: Any,
        executor: Executor,
        verify: Verify,
    ) -> None:
        self._count, self._verify = count, verify
        plan = sized_plan(config, spec, count, 1)
        self._controller = make_controller(plan, backend, executor, verify)
        (arena,) = self._controller.host.arenas.values()
        self._objects = ArenaObjects(arena, checksum=verify is Verify.checksum)
        arena.memory.fill_(7)
        self._client = backend.client  # what the backend calls, without it
        self._seed = 0
        self._renew()

    def cases(self, way: Way, object_bytes: int) -> Cases:
        case = partial(
            Case,
            size=f"{self._count} x {object_bytes // 1024} KiB",
            unit=GB_PER_S,
            reference_name="raw client",
            target=way.target(self._verify, object_bytes),
            amount=self._count * self._objects.object_bytes,
        )
        what = f"{self._verify.name} ({way.name})"
        yield case(
            name=f"write_storage {what}",
            ours=self._put,
            reference=self._raw_put,
            before=self._renew,
        )
        self._renew()
        self._put()
        yield case(name=f"prefetch {what}", ours=self._get, reference=self._raw_get)
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
        store, keys = self._client.store, self._sealed.keys
        store.batch_is_exist(keys)
        put = getattr(store, f"batch_put_from{_suffix(self._sealed)}")
        _demand(np.equal(put(keys, *_pointers(self._sealed), self._client.config()), 0))

    def _raw_get(self) -> None:
        get = getattr(self._client.store, f"batch_get_into{_suffix(self._sealed)}")
        codes = get(self._sealed.keys, *_pointers(self._sealed))
        _demand(np.equal(codes, self._sealed.object_bytes))


def _one_pool(object_bytes: int, layout: str) -> ModelSpec:
    """A model whose storage objects have about this size, trailer included, in many layers."""
    layers = tuple(range(_NUM_LAYERS))
    row = ((object_bytes - TRAILER_BYTES) // _NUM_LAYERS,)
    pool = PoolSpec(
        name=_POOL,
        unit=Unit.page,
        layers=layers,
        all_layers=layers,
        buffers=(BufferSpec("bytes", row, row, "uint8"),),
        index_space=_POOL,
        hit_policy=PoolHitPolicy.all_pages,
        axes=layout_presets()[layout],
    )
    stage = (0, _NUM_LAYERS)
    return ModelSpec("bench", 64, 1, (pool,), (), _POOL, stage, {"bench": str(object_bytes)})


def _suffix(sealed: PageObjects) -> str:
    """Of the client's methods for objects in one part, or in many."""
    return "" if len(sealed.part_bytes) == 1 else "_multi_buffers"


def _pointers(sealed: PageObjects) -> tuple[list[Any], list[Any]]:
    """Addresses and sizes as those methods want them."""
    addresses, sizes = sealed.addresses, sealed.part_bytes
    if len(sizes) == 1:
        addresses, sizes = addresses.ravel(), sizes[0]
    return addresses.tolist(), [sizes.tolist()] * len(sealed.keys)


def _demand(ok: Any) -> None:
    """A call that fails takes another time than one that does its work.

    Raises:
        BackendError: Objects were refused.
    """
    if not np.all(ok):
        raise BackendError(f"the store refused {int(np.size(ok) - np.sum(ok))} of {np.size(ok)}")
