"""Views of one pool's memory that copies work on, in either tier.

A view has the shape ``[layer, slot, row, head, word]``: a slot is a page or a state, a word the
widest integer that divides every offset and stride, so that one code path moves rows of any dtype
and any alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch

from composer.layout import Block, BlockPlacement
from composer.spec import PoolSpec

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class BufferView:
    """One buffer of a pool.

    Attributes:
        layers: Either one tensor ``[layer, slot, row, head, word]``, or one per layer, each with
            a first axis of length 1.
        word_bytes: Bytes of the integer that the tensors hold.
    """

    layers: tuple[torch.Tensor, ...]
    word_bytes: int

    @property
    def num_layers(self) -> int:
        return sum(tensor.shape[0] for tensor in self.layers)

    def narrowed(self, word_bytes: int) -> BufferView:
        """The same bytes as smaller words."""
        if word_bytes == self.word_bytes:
            return self
        dtype = WORDS[word_bytes]
        return BufferView(tuple(tensor.view(dtype) for tensor in self.layers), word_bytes)

    def by_layer(self) -> tuple[torch.Tensor, ...]:
        """One tensor per layer, each with a first axis of length 1."""
        return tuple(part for tensor in self.layers for part in tensor.split(1))


@dataclass(frozen=True)
class PoolEntry:
    """One pool in one tier: its spec and a view of each of its buffers, by name."""

    spec: PoolSpec
    buffers: dict[str, BufferView]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def indices_from_pool(self) -> str | None:
        return self.spec.indices_from_pool

    @property
    def share_indices_with_anchor(self) -> bool:
        """Whether the pool has no ids of its own."""
        return self.spec.indices_from_pool is not None


def host_view(
    memory: torch.Tensor, base: int, block: Block, place: BlockPlacement, num_slots: int
) -> BufferView:
    """A view of one block in an arena's bytes.

    Args:
        memory: The arena, uint8 ``[bytes]``.
        base: Offset of the block's section.
        block: What is placed.
        place: Where, relative to the section.
        num_slots: Pages or states.
    """
    strides = (place.page_stride, place.token_stride, place.head_stride)
    numbers = [base, block.cell_bytes, *place.offset.tolist()]
    numbers += [number for stride in strides for number in stride.tolist()]
    word = _word_bytes(numbers)
    words = memory[: memory.numel() // word * word].view(WORDS[word])
    step = place.layer_stride

    def view(first: int, count: int, layer_stride: int) -> torch.Tensor:
        return words.as_strided(
            (count, num_slots, block.tokens, block.heads, block.cell_bytes // word),
            (layer_stride // word, *(int(s[first]) // word for s in strides), 1),
            int(words.storage_offset()) + (base + int(place.offset[first])) // word,
        )

    num_layers = len(block.layers)
    if step is not None:
        return BufferView((view(0, num_layers, step),) if num_layers else (), word)
    return BufferView(tuple(view(first, 1, 0) for first in range(num_layers)), word)


def device_view(tensors: Sequence[torch.Tensor], block: Block, num_slots: int) -> BufferView:
    """A view of one buffer in device memory.

    Args:
        tensors: One tensor ``[layer, row, ...]``, or one ``[1, row, ...]`` per layer.
        block: What the rows hold.
        num_slots: Pages or states; rows behind them are left alone.
    """
    num_rows = num_slots * block.tokens
    flat = [_row_bytes(tensor[:, :num_rows]) for tensor in tensors]
    numbers = [block.cell_bytes]
    for tensor in flat:
        numbers += [int(tensor.storage_offset()), tensor.stride(0), tensor.stride(1)]
    word = _word_bytes(numbers)
    shape = (num_slots, block.tokens, block.heads, block.cell_bytes // word)
    return BufferView(
        tuple(
            tensor.view(WORDS[word]).unflatten(1, shape[:2]).unflatten(3, shape[2:])
            for tensor in flat
        ),
        word,
    )


def _row_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous rows as bytes, ``[layer, row, byte]``: a view, whatever strides axes of 1 have."""
    layer_stride, row_stride = tensor.stride()[:2]
    shape = (*tensor.shape[:2], tensor.shape[2:].numel())
    return tensor.as_strided(shape, (layer_stride, row_stride, 1)).view(torch.uint8)


def _word_bytes(numbers: Sequence[int]) -> int:
    return gcd(8, *numbers)
