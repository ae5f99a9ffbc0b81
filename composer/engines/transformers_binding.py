"""Moves pages and states between a stack's device tier and a cache of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from composer.device_buffers import stacked
from composer.engines.transformers_cache import Place, held, is_windowed, layers_of, new_cache
from composer.reading.lease import Lease
from composer.stack import Stack

VALUES = "values"  # a pool that excludes them has them in its keys
_METHODS: Mapping[str, Callable[[Any, str, torch.Tensor], Any]] = {
    "indexer_keys": lambda layer, _, tensor: layer.update_indexer(tensor),
    "conv_states": lambda layer, part, tensor: layer.update_conv_state(tensor, int(part)),
    "recurrent_states": lambda layer, part, tensor: layer.update_recurrent_state(tensor, int(part)),
    "compressed_kv": lambda layer, part, tensor: layer.update_compressor_states(part, tensor),
}


@dataclass(frozen=True)
class _Cell:
    """One buffer of one layer on both sides; ``rows``: the stack's, ``[row, *shape]``."""

    place: Place
    rows: torch.Tensor

    def pages(self, ids: Sequence[int]) -> torch.Tensor:
        """Copy of some pages as the engine keeps them, ``[1, ..., token, dim]``."""
        found = self._by_page()[torch.tensor(ids, device=self.rows.device)]
        shape = self.place.shape
        found = found.reshape(-1, *shape).to(self.place.device)
        return found.movedim(0, -2).contiguous().unsqueeze(0)

    def put_pages(self, ids: Sequence[int], live: torch.Tensor) -> None:
        """Fill some pages with what the engine keeps."""
        target = self._by_page()
        rows = live[0].movedim(-2, 0).reshape(len(ids), *target.shape[1:])
        target[torch.tensor(ids, device=target.device)] = rows.to(target.device)

    def _by_page(self) -> torch.Tensor:
        per_page = self.place.pool.rows_per_page
        num_pages = len(self.rows) // per_page  # an engine's own tensor may have a few rows more
        return self.rows[: num_pages * per_page].view(num_pages, per_page, *self.rows.shape[1:])


class Binding:
    """One model's caches and one stack."""

    def __init__(self, config: Any, stack: Stack, places: Sequence[Place]) -> None:
        """``config``: the model's; ``places``: of all buffers of the stack's schema."""
        self._config, self._stack = config, stack
        self._cells = [_Cell(place, _rows(stack, place)) for place in places]
        self._layers: dict[int, list[_Cell]] = {}
        for cell in self._cells:
            self._layers.setdefault(cell.place.layer, []).append(cell)
        self._kept = dict(self._windows())

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Layers that trail, each with the tokens of the pages that its window lies in."""
        for cell in self._cells:
            space = self._stack.plan.spaces[cell.place.pool.index_space]
            if not space.is_state and space.window_pages is not None:
                yield cell.place.layer, space.window_pages * self._stack.page_size

    def restored(self, lease: Lease) -> DynamicCache:
        """A new cache that holds a prefix; empty where that has no page."""
        cache = new_cache(self._config, self._stack.plan.spec)
        if lease.num_pages:
            for number, cells in self._layers.items():
                _restore(layers_of(cache)[number], self._found(cells, lease), lease.num_tokens)
        return cache

    def _found(self, cells: Sequence[_Cell], lease: Lease) -> dict[str, torch.Tensor]:
        found = {}
        for cell in cells:
            place = cell.place
            if place.is_state:
                state = cell.rows[lease.states[place.pool.index_space]].clone()  # it is immutable
                found[place.attribute] = state.reshape(1, *place.shape).to(place.device)
            else:
                found[place.attribute] = cell.pages(lease.pages[place.pool.index_space])
            if place.attribute == "keys" and VALUES in (place.pool.exclude or ()):
                found[VALUES] = found["keys"]
        return found

    def save_pages(
        self, cache: DynamicCache, pages: Mapping[str, Sequence[int]], first: int, num_tokens: int
    ) -> None:
        """Copy pages out of a cache.

        Args:
            cache: It still holds their tokens.
            pages: Index space -> device pages to fill, one per page of the prompt.
            first: The first of those pages.
            num_tokens: That the cache has seen.
        """
        for cell in self._cells:
            place = cell.place
            if place.is_state:
                continue
            live = held(layers_of(cache)[place.layer])[place.attribute]
            rows = place.pool.rows_per_page
            forgotten = num_tokens // place.pool.tokens_per_row - live.shape[-2]
            begin = max(first, -(-forgotten // rows))  # pages before are out of the window
            ids = pages[place.pool.index_space]
            end = first + len(ids)
            if begin < end:
                part = live[..., begin * rows - forgotten : end * rows - forgotten, :]
                cell.put_pages(ids[begin - first :], part)

    def save_state(self, cache: DynamicCache, state: Mapping[str, int]) -> None:
        """Copy what stands for all tokens so far to a device state."""
        for cell in self._cells:
            if cell.place.is_state:
                live = held(layers_of(cache)[cell.place.layer])[cell.place.attribute]
                target = cell.rows[state[cell.place.pool.index_space]]
                target.copy_(live.reshape(target.shape))

    def trim(self, cache: DynamicCache) -> None:
        """Let windows forget what no page of theirs needs."""
        layers = layers_of(cache)
        for number, kept in self._kept.items():
            layer = layers[number]
            layer.keys, layer.values = layer.keys[..., -kept:, :], layer.values[..., -kept:, :]


def _rows(stack: Stack, place: Place) -> torch.Tensor:
    tensors = stacked(stack.device.tensors[place.pool.name][place.buffer.name])
    layers: list[torch.Tensor] = [layer for tensor in tensors for layer in tensor]
    return layers[place.index]


def _restore(layer: Any, found: Mapping[str, torch.Tensor], num_tokens: int) -> None:
    """Give an empty layer what it holds after some tokens, by its own methods."""
    if "keys" in found:
        keys = found["keys"]
        layer.update(keys, found.get(VALUES, keys[..., :0]))  # some have values of width 0
    for attribute, tensor in found.items():
        name, _, part = attribute.partition(".")
        if name in _METHODS:
            _METHODS[name](layer, part, tensor)
        elif part:
            getattr(layer, name)[part] = tensor
    if is_windowed(layer):
        layer.cumulative_length = num_tokens  # it counts what it was given, and was given its end
