"""A model's pools with every expression resolved, cut to one rank: plain numbers, all frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from composer.schema import PoolHitPolicy, StorageObjects, Unit

DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Split:
    """How a buffer is cut over tensor-parallel ranks, and this rank's share.

    Attributes:
        axis: Axis of the row's shape.
        parts: Length of each part on the whole model; they add up to the axis.
        unit_size: Per part, length of the piece that is never cut, e.g. a head.
        unit_ranges: Per part, first and past-the-last unit that this rank holds.
    """

    axis: int
    parts: tuple[int, ...]
    unit_size: tuple[int, ...]
    unit_ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class BufferSpec:
    """One tensor of a pool.

    Attributes:
        name: Name within the pool, e.g. ``latent``.
        full_shape: Shape of one row on the whole model.
        shape: Shape of one row on this rank.
        dtype: Name of a torch dtype.
        split: None where every rank holds the same bytes.
        fields: Config fields that the shape expressions read, by name, as JSON-able values.
    """

    name: str
    full_shape: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    split: Split | None = None
    fields: tuple[tuple[str, object], ...] = ()

    @property
    def item_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on this rank."""
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class PoolSpec:
    """One pool on this rank.

    Attributes:
        layers: Global numbers of the layers that own rows here, ascending.
        all_layers: The same on the whole model.
        producers: Layer that uses another layer's rows -> that layer, whole model.
        layer_rule: How the layers were chosen, for people, with the fields that were missing.
        index_space: The pool whose free list holds this pool's ids (itself, or its last source).
        rows_per_page: Rows of a page; 1 where the unit is page or state.
        window_tokens: Only with trailing_pages on a token or page pool.
        draft: Whether the pool belongs to the draft layers.
        shard: What this rank's bytes are: ``r``, ``h2-3of8``, ``s1of4`` (no layer range), and
            behind it ``.c0of2`` where several context-parallel ranks hold a page's tokens.
        shard_class: ``replicated``, ``heads`` or ``rank``.
        twins: Tensor-parallel ranks below this one that hold the same bytes.
        axes: The layout's axis order for this pool.
    """

    name: str
    unit: Unit
    layers: tuple[int, ...]
    all_layers: tuple[int, ...]
    buffers: tuple[BufferSpec, ...]
    index_space: str
    hit_policy: PoolHitPolicy
    axes: tuple[str, ...]
    rows_per_page: int = 1
    tokens_per_row: int = 1
    window_tokens: int | None = None
    indices_from_pool: str | None = None
    producers: Mapping[int, int] | None = None
    layer_rule: str = "all"
    required: bool = True
    prefix_cacheable: bool = True
    draft: bool = False
    shard: str = "r"
    shard_class: str = "replicated"
    twins: tuple[int, ...] = ()
    weight: float | None = None
    exclude: Mapping[str, str] | None = None

    @property
    def page_bytes(self) -> int:
        """Payload bytes of one page (or state) of this pool on this rank."""
        rows = sum(buffer.row_bytes for buffer in self.buffers)
        return rows * self.rows_per_page * len(self.layers)


@dataclass(frozen=True)
class ModelSpec:
    """All pools of a model on one rank.

    Attributes:
        pools: Pools in schema order; draft pools only where drafting is on.
        draft_pools: Draft pools that are described but off.
        anchor: Pool on which pages and hits are counted; None for a pure state-space model.
        stage: First and past-the-last layer of this pipeline stage.
        identity: What enters every namespace beside the pools, by name.
        objects: What one storage object carries.
    """

    name: str
    page_size: int
    num_layers: int
    pools: tuple[PoolSpec, ...]
    draft_pools: tuple[PoolSpec, ...]
    anchor: str | None
    stage: tuple[int, int]
    identity: Mapping[str, str]
    objects: StorageObjects = StorageObjects.page

    @cached_property
    def spaces(self) -> dict[str, tuple[PoolSpec, ...]]:
        """Index space -> the pools that share its ids, its owner first."""
        spaces: dict[str, list[PoolSpec]] = {}
        for pool in self.pools:
            if pool.index_space == pool.name:
                spaces[pool.name] = [pool]
        for pool in self.pools:
            if pool.index_space != pool.name:
                spaces[pool.index_space].append(pool)
        return {name: tuple(pools) for name, pools in spaces.items()}

    def pool(self, name: str) -> PoolSpec:
        return next(pool for pool in self.pools if pool.name == name)

    def is_trailing(self, space: str) -> bool:
        """Whether only the last pages before a boundary are kept."""
        return self.spaces[space][0].hit_policy is PoolHitPolicy.trailing_pages

    def is_state(self, space: str) -> bool:
        """Whether the space holds states instead of pages."""
        return self.spaces[space][0].unit is Unit.state

    def window_pages(self, pools: tuple[PoolSpec, ...]) -> int:
        """Pages before a boundary that trailing ``pools`` of one space need together."""
        return max(
            1 if pool.window_tokens is None else ceil(pool.window_tokens / self.page_size)
            for pool in pools
        )
