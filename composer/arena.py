"""Arenas: which pools share one storage object, and what that object is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from composer.keys import FORMAT_VERSION, namespace_digest, object_name
from composer.layout import ALIGNMENT, Block, Section, check_blocks, object_order
from composer.schema import StorageObjects, Unit
from composer.spec import BufferSpec, ModelSpec, PoolSpec

TRAILER_BYTES = 64


@dataclass(frozen=True)
class ArenaSpec:
    """The pools that share one storage object.

    Those of one index space, one shard class and one value of ``required``; less of them where
    ``storage.objects`` says so.

    Attributes:
        space: Index space whose ids number the arena's pages (or states).
        pools: Pools with buffers, in schema order.
        sections: The pools grouped by axis order, in schema order.
        name: The object part of the storage key.
        shard: The shard part: which of the model's bytes this rank holds.
        required: False: a miss of this arena degrades a hit instead of shortening it.
        writes: Whether this rank is the first of those that hold the same bytes.
        window_pages: Pages before a boundary that must be there; None: all of them.
        manifest: What the namespace is a digest of, for people.
        namespace: Digest of everything that changes the meaning of the object's bytes.
    """

    space: str
    pools: tuple[PoolSpec, ...]
    sections: tuple[tuple[PoolSpec, ...], ...]
    name: str
    shard: str
    required: bool
    writes: bool
    window_pages: int | None
    manifest: Mapping[str, object]

    @cached_property
    def namespace(self) -> str:
        return namespace_digest(self.manifest)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all pools for one page (or state)."""
        return sum(pool.page_bytes for pool in self.pools)

    @property
    def object_bytes(self) -> int:
        """Bytes of one storage object: payload, each section padded, and the trailer."""
        sizes = (sum(pool.page_bytes for pool in section) for section in self.sections)
        return sum(size + -size % ALIGNMENT for size in sizes) + TRAILER_BYTES

    @property
    def is_record(self) -> bool:
        """Whether a page is one stretch of memory that ends with its trailer."""
        return len(self.sections) == 1 and self.pools[0].axes[0] == "page"

    def place(self, num_slots: int) -> tuple[Section, ...]:
        """The arena's sections for a number of pages (or states).

        Raises:
            ConfigError: The axis order cannot interleave the pools.
        """
        extra = TRAILER_BYTES if self.is_record else 0
        placed = []
        for pools in self.sections:
            blocks = pool_blocks(pools)
            check_blocks(pools[0].axes, blocks)
            placed.append(Section(pools[0].axes, blocks, num_slots, extra))
        return tuple(placed)


def pool_blocks(pools: Sequence[PoolSpec]) -> list[Block]:
    """This rank's buffers of ``pools``, as a layout sees them."""
    return [
        _block(pool, buffer, pool.layers, buffer.shape) for pool in pools for buffer in pool.buffers
    ]


def head_axis(pool: PoolSpec, buffer: BufferSpec) -> int | None:
    """Axis of the row's shape that is the layout's ``head`` axis; None where there is none."""
    return buffer.split.axis if pool.unit is Unit.token and buffer.split is not None else None


def make_arenas(spec: ModelSpec) -> tuple[ArenaSpec, ...]:
    """All arenas that have bytes on this rank.

    The arena of an index space's owner comes after the space's others: it is written last, so
    that its object vouches for theirs.
    """
    arenas: list[ArenaSpec] = []
    for space, pools in spec.spaces.items():
        stored = [pool for pool in pools if pool.prefix_cacheable and pool.buffers]
        found = [_arena(spec, space, name, group) for name, group in _groups(spec, space, stored)]
        arenas.extend(arena for arena in reversed(found) if arena.payload_bytes)
    return tuple(arenas)


def _groups(
    spec: ModelSpec, space: str, pools: Sequence[PoolSpec]
) -> list[tuple[str, tuple[PoolSpec, ...]]]:
    """Name of each arena of a space, and its pools (or one pool with one of its buffers)."""
    if spec.objects is StorageObjects.pool:
        return [(object_name(space, [pool.name]), (pool,)) for pool in pools]
    if spec.objects is StorageObjects.buffer:
        return [
            (object_name(space, [pool.name], one.name), (replace(pool, buffers=(one,)),))
            for pool in pools
            for one in pool.buffers
        ]
    groups: dict[tuple[str, bool], list[PoolSpec]] = {}
    for pool in pools:
        groups.setdefault((pool.shard_class, pool.required), []).append(pool)
    first, *others = groups.values() or [[]]
    named = [(object_name(space), tuple(first))] if first else []
    return named + [(object_name(space, (p.name for p in one)), tuple(one)) for one in others]


def _arena(spec: ModelSpec, space: str, name: str, pools: tuple[PoolSpec, ...]) -> ArenaSpec:
    by_axes: dict[tuple[str, ...], list[PoolSpec]] = {}
    for pool in pools:
        by_axes.setdefault(pool.axes, []).append(pool)
    sections = tuple(tuple(section) for section in by_axes.values())
    layers = sorted({layer for pool in pools for layer in pool.layers})
    cuts = "+".join(dict.fromkeys(pool.shard for pool in pools))
    return ArenaSpec(
        space=space,
        pools=pools,
        sections=sections,
        name=name,
        shard=f"{cuts}.l{layers[0]}-{layers[-1]}" if layers else cuts,
        required=pools[0].required,
        writes=not set.intersection(*(set(pool.twins) for pool in pools)),
        window_pages=spec.window_pages(pools) if spec.is_trailing(space) else None,
        manifest=_manifest(spec, sections),
    )


def _manifest(spec: ModelSpec, sections: Sequence[Sequence[PoolSpec]]) -> dict[str, object]:
    return {
        **spec.identity,
        "format": FORMAT_VERSION,
        "page_size": spec.page_size,
        "sections": [
            {
                "order": object_order(section[0].axes, _whole_blocks(section)),
                "pools": [_pool_manifest(pool) for pool in section],
            }
            for section in sections
        ],
    }


def _pool_manifest(pool: PoolSpec) -> dict[str, object]:
    return {
        "name": pool.name,
        "unit": pool.unit.name,
        "layers": pool.all_layers,
        "tokens_per_row": pool.tokens_per_row,
        "buffers": [
            {
                "name": buffer.name,
                "dtype": buffer.dtype,
                "shape": buffer.full_shape,
                "fields": buffer.fields,
                "split": buffer.split
                and (buffer.split.axis, buffer.split.parts, buffer.split.unit_size),
            }
            for buffer in pool.buffers
        ],
    }


def _whole_blocks(pools: Sequence[PoolSpec]) -> list[Block]:
    """The whole model's buffers: the order of bytes must not depend on the number of ranks."""
    return [
        _block(pool, buffer, pool.all_layers, buffer.full_shape)
        for pool in pools
        for buffer in pool.buffers
    ]


def _block(
    pool: PoolSpec, buffer: BufferSpec, layers: tuple[int, ...], shape: tuple[int, ...]
) -> Block:
    axis = head_axis(pool, buffer)
    heads = 1 if axis is None else shape[axis]
    row_bytes = buffer.item_bytes
    for extent in shape:
        row_bytes *= extent
    return Block(
        pool=pool.name,
        buffer=buffer.name,
        layers=layers,
        tokens=pool.rows_per_page,
        heads=heads,
        cell_bytes=row_bytes // heads,
        item_bytes=buffer.item_bytes,
    )
