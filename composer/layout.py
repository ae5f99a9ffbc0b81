"""Where the bytes of a page lie: one permutation of five axes decides.

A section's bytes are its cells in the lexicographic order of the axes ``buffer, layer, page,
token, head``. A cell is what is left of a row behind those axes. An axis that a block lacks has
extent 1 there, a layer that it does not own is skipped. Everything else follows: offsets, strides,
and the runs of bytes that make up one page. A page's *object* is the same cells without the page
axis, so that axis orders which differ only in the place of ``page`` store equal objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from composer.errors import ConfigError

AXES = ("buffer", "layer", "page", "token", "head")
ALIGNMENT = 64  # bytes; sections start and end at multiples of it

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """One buffer of one pool, as a layout sees it.

    Attributes:
        layers: Global numbers of the layers that own rows, ascending.
        tokens: Rows per page; 1 where the pool's unit is page or state.
        heads: Extent of the axis that is cut over ranks; 1 where there is none.
        cell_bytes: Bytes of one (layer, page, token, head).
        item_bytes: Bytes of one element.
    """

    pool: str
    buffer: str
    layers: tuple[int, ...]
    tokens: int
    heads: int
    cell_bytes: int
    item_bytes: int

    @property
    def name(self) -> str:
        return f"{self.pool}.{self.buffer}"

    @property
    def page_bytes(self) -> int:
        return len(self.layers) * self.tokens * self.heads * self.cell_bytes


@dataclass(frozen=True)
class BlockPlacement:
    """Byte offsets and strides of one block, one entry per layer it owns."""

    offset: Ints
    page_stride: Ints
    token_stride: Ints
    head_stride: Ints

    @cached_property
    def layer_stride(self) -> int | None:
        """The one stride between layers, or None where layers lie irregularly."""
        steps = np.unique(np.diff(self.offset))
        strides = (self.page_stride, self.token_stride, self.head_stride)
        if len(steps) > 1 or any(len(np.unique(stride)) > 1 for stride in strides):
            return None
        return int(steps[0]) if len(steps) else 0


@dataclass(frozen=True)
class Runs:
    """The stretches of bytes of one page, in object order.

    Run ``i`` of page ``p`` starts at ``offset[i] + p * stride[i]`` and is ``num_bytes[i]`` long.
    """

    offset: Ints
    stride: Ints
    num_bytes: Ints

    def __len__(self) -> int:
        return len(self.offset)

    def shifted(self, base: int) -> Runs:
        """The same runs, ``base`` bytes further on."""
        return Runs(self.offset + base, self.stride, self.num_bytes)


class Section:
    """Blocks that share one axis order, placed for a number of pages.

    Attributes:
        payload_bytes: Bytes of one page without padding.
        padding_bytes: Zero bytes behind a page's payload in its object.
        is_record: Whether a page is one stretch of memory, which then holds its own padding
            (and what ``record_extra`` asks for behind it).
        total_bytes: Bytes of all pages.
    """

    def __init__(
        self,
        axes: Sequence[str],
        blocks: Sequence[Block],
        num_pages: int,
        record_extra: int = 0,
    ) -> None:
        self.axes, self.blocks, self.num_pages = tuple(axes), tuple(blocks), num_pages
        self.payload_bytes = sum(block.page_bytes for block in self.blocks)
        self.padding_bytes = -self.payload_bytes % ALIGNMENT
        self.is_record = self.axes[0] == "page"
        record = self.payload_bytes + self.padding_bytes + record_extra
        self.record_bytes = record if self.is_record else None
        self.total_bytes = num_pages * (record if self.is_record else self.payload_bytes)

    @cached_property
    def placements(self) -> tuple[BlockPlacement, ...]:
        """Where each block lies, relative to the section's start."""
        return _place(self.axes, self.blocks, self.num_pages, self.record_bytes)

    @cached_property
    def runs(self) -> Runs:
        """The payload's runs of one page, touching ones merged.

        Cells of one page lie in memory in the order of the other axes: that of its object.
        """
        parts = [_cells(*pair) for pair in zip(self.blocks, self.placements, strict=True)]
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        offset, stride, num_bytes = columns
        order = np.argsort(offset)
        return _merge(Runs(offset[order], stride[order], num_bytes[order]))


def check_axes(key: str, axes: Sequence[str]) -> None:
    """Refuse what is no permutation of the five axes.

    Raises:
        ConfigError: With the key and what is missing or too much.
    """
    if sorted(axes) != sorted(AXES):
        raise ConfigError.of(
            key,
            f"{list(axes)} is no order of the axes",
            f"Give each of {', '.join(AXES)} exactly once",
        )


def check_blocks(axes: Sequence[str], blocks: Sequence[Block]) -> None:
    """Refuse blocks whose cells cannot interleave in this order.

    Raises:
        ConfigError: ``token`` or ``head`` stands left of ``buffer`` and two blocks differ.
    """
    left = axes[: axes.index("buffer")]
    for axis, extent in (("token", "tokens"), ("head", "heads")):
        if axis not in left:
            continue
        for block in blocks[1:]:
            first = blocks[0]
            pair = [(getattr(b, extent), b.item_bytes) for b in (first, block)]
            if pair[0] != pair[1]:
                raise ConfigError.of(
                    "layout.axes",
                    f"'{axis}' stands left of 'buffer', but {first.name} has {pair[0][0]} {extent} "
                    f"of {pair[0][1]}-byte items and {block.name} has {pair[1][0]} of {pair[1][1]}",
                    f"Move '{axis}' right of 'buffer', or give one of the pools its own layout",
                )


def object_order(axes: Sequence[str], blocks: Sequence[Block]) -> tuple[str, ...]:
    """The axes that decide the order of bytes in an object: ``page`` and absent ones left out."""
    extents = {
        "buffer": len(blocks),
        "layer": len({layer for block in blocks for layer in block.layers}),
        "token": max((block.tokens for block in blocks), default=1),
        "head": max((block.heads for block in blocks), default=1),
        "page": 1,
    }
    return tuple(axis for axis in axes if extents[axis] > 1)


class _Sizes:
    """Bytes below each axis, given the buffer and layer that axes further left have fixed."""

    def __init__(self, axes: Sequence[str], blocks: Sequence[Block], num_pages: int) -> None:
        self.axes, self.blocks, self.num_pages = axes, blocks, num_pages
        self.layers = sorted({layer for block in blocks for layer in block.layers})
        self.owned = [frozenset(block.layers) for block in blocks]
        self._known: dict[tuple[int, int | None, int | None], int] = {}

    def below(self, depth: int, block: int | None, layer: int | None) -> int:
        """Bytes spanned by ``axes[depth:]``."""
        key = (depth, block, layer)
        if key not in self._known:
            self._known[key] = self._span(depth, block, layer)
        return self._known[key]

    def siblings(self, axis: str, block: int | None, layer: int | None) -> Sequence[int]:
        """Values of the ``buffer`` or ``layer`` axis that exist where it stands."""
        if axis == "buffer":
            every = range(len(self.blocks))
            return every if layer is None else [b for b in every if layer in self.owned[b]]
        return self.layers if block is None else self.blocks[block].layers

    def _span(self, depth: int, block: int | None, layer: int | None) -> int:
        if depth == len(self.axes):
            return self.blocks[block or 0].cell_bytes
        axis = self.axes[depth]
        if axis == "buffer":
            values = self.siblings(axis, block, layer)
            return sum(self.below(depth + 1, value, layer) for value in values)
        if axis == "layer":
            values = self.siblings(axis, block, layer)
            return sum(self.below(depth + 1, block, value) for value in values)
        example = self.blocks[block or 0]
        extent = {"page": self.num_pages, "token": example.tokens, "head": example.heads}[axis]
        return extent * self.below(depth + 1, block, layer)


def _place(
    axes: Sequence[str], blocks: Sequence[Block], num_pages: int, record_bytes: int | None
) -> tuple[BlockPlacement, ...]:
    sizes = _Sizes(axes, blocks, num_pages)
    return tuple(_place_block(sizes, index, record_bytes) for index in range(len(blocks)))


def _place_block(sizes: _Sizes, index: int, record_bytes: int | None) -> BlockPlacement:
    block = sizes.blocks[index]
    columns: dict[str, list[int]] = {"offset": [], "page": [], "token": [], "head": []}
    for own_layer in block.layers:
        fixed: dict[str, int | None] = {"buffer": None, "layer": None}
        own = {"buffer": index, "layer": own_layer}
        offset, strides = 0, {"page": 0, "token": 0, "head": 0}
        for depth, axis in enumerate(sizes.axes):
            if axis in fixed:
                for value in sizes.siblings(axis, fixed["buffer"], fixed["layer"]):
                    if value >= own[axis]:
                        break
                    context = fixed | {axis: value}
                    offset += sizes.below(depth + 1, context["buffer"], context["layer"])
                fixed[axis] = own[axis]
            else:
                strides[axis] = sizes.below(depth + 1, fixed["buffer"], fixed["layer"])
        if record_bytes is not None:
            strides["page"] = record_bytes
        columns["offset"].append(offset)
        for axis, stride in strides.items():
            columns[axis].append(stride)
    return BlockPlacement(*(np.array(column, dtype=np.int64) for column in columns.values()))


def _cells(block: Block, place: BlockPlacement) -> tuple[Ints, Ints, Ints]:
    """Offset in page 0, page stride and bytes of each stretch of one block."""
    cell, heads, tokens = block.cell_bytes, block.heads, block.tokens
    if _contiguous(heads, cell, place.head_stride):
        cell, heads = cell * heads, 1
        if _contiguous(tokens, cell, place.token_stride):
            cell, tokens = cell * tokens, 1
    token = np.arange(tokens, dtype=np.int64)[None, :, None]
    head = np.arange(heads, dtype=np.int64)[None, None, :]
    rows = place.offset[:, None, None] + token * place.token_stride[:, None, None]
    offset = np.asarray(rows + head * place.head_stride[:, None, None]).reshape(-1)
    stride = np.repeat(place.page_stride, tokens * heads)
    return offset, stride, np.full(len(stride), cell, dtype=np.int64)


def _contiguous(extent: int, num_bytes: int, stride: Ints) -> bool:
    return extent == 1 or bool(np.all(stride == num_bytes))


def _merge(runs: Runs) -> Runs:
    """Join runs that touch in memory and move together from page to page."""
    if not len(runs):
        return runs  # a pipeline stage may own no layer of a section
    touches = runs.offset[1:] == runs.offset[:-1] + runs.num_bytes[:-1]
    together = touches & (runs.stride[1:] == runs.stride[:-1])
    starts = np.flatnonzero(np.concatenate(([True], ~together)))
    return Runs(runs.offset[starts], runs.stride[starts], np.add.reduceat(runs.num_bytes, starts))
