"""Where transformers keeps what a schema names, and whether it keeps anything else.

A cache is a list of layers. A layer keeps tensors ``[1, heads, token, dim]`` (or without heads)
that grow with every token, and tensors ``[1, *shape]`` that stand for all tokens so far. Which one
a buffer is follows from the buffer's name; that the shapes agree is checked on a cache that the
model itself has filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from composer.errors import ConfigError, Problems
from composer.schema import Unit
from composer.spec import BufferSpec, ModelSpec, PoolSpec

# Buffers by name, and the attributes of a cache's layer that hold them.
ATTRIBUTES: Mapping[str, str] = {
    "k": "keys",
    "latent": "keys",
    "v": "values",
    "rope": "values",
    "key": "indexer_keys",
    "temporal": "recurrent_states.0",
    "conv": "conv_states.0",
}
_STATES = ("conv_states", "recurrent_states")


@dataclass(frozen=True)
class Place:
    """One buffer of one layer.

    Attributes:
        index: The layer's place among those of the pool.
        layer: Its number in the cache.
        attribute: Of that layer; behind a dot the number of the state.
        shape: What the tensor holds per token, or per state, without the batch.
        device: Where it lies.
    """

    pool: PoolSpec
    buffer: BufferSpec
    index: int
    layer: int
    attribute: str
    shape: tuple[int, ...]
    device: torch.device

    @property
    def is_state(self) -> bool:
        return self.pool.unit is Unit.state


def probe(model: Any, num_tokens: int) -> DynamicCache:
    """A cache that a model has filled with some tokens."""
    cache = new_cache(model.config)
    ids = torch.arange(num_tokens, device=model.device)[None]
    with torch.inference_mode():
        model(
            input_ids=ids % model.config.get_text_config().vocab_size,
            position_ids=ids,
            cache=cache,
            use_cache=True,
        )
    return cache


def new_cache(config: Any) -> DynamicCache:
    """An empty cache whose windows keep all that they are given, until they are trimmed."""
    cache = DynamicCache(config=config)
    for layer in layers_of(cache):
        if is_windowed(layer):
            layer.activate_past_recording()
    return cache


def layers_of(cache: DynamicCache) -> list[Any]:
    """A cache's layers; which attributes one has depends on its kind."""
    return list(cache.layers)


def is_windowed(layer: Any) -> bool:
    """Whether a layer forgets keys and values that are out of its window."""
    return hasattr(layer, "cumulative_length")


def held(layer: Any) -> dict[str, torch.Tensor]:
    """Tensors that a layer keeps, by attribute; one that has two names counts once."""
    found: dict[str, torch.Tensor] = {}
    for name, value in _tensors(layer):
        if not any(value is other for other in found.values()):
            found[name] = value
    return found


def _tensors(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in vars(layer).items():
        if name.startswith("_"):
            continue
        parts = value.items() if isinstance(value, dict) else ()
        for key, tensor in ((name, value), *((f"{name}.{key}", part) for key, part in parts)):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                yield key, tensor


def find_places(spec: ModelSpec, cache: DynamicCache, num_tokens: int) -> list[Place]:
    """Every buffer of a schema in a cache that a model has filled.

    Args:
        spec: The schema, on one rank.
        cache: From ``probe``.
        num_tokens: That it was filled with.

    Raises:
        ConfigError: A buffer is not in the cache, or has another shape or dtype there; or the
            cache holds a tensor that no buffer claims, or a layer that keeps its state elsewhere.
    """
    problems, places = Problems(), []
    tensors = [held(layer) for layer in layers_of(cache)]
    unclaimed = {(layer, name) for layer, found in enumerate(tensors) for name in found}
    for pool in spec.pools:
        for buffer in pool.buffers:
            name = ATTRIBUTES.get(buffer.name, buffer.name)
            for index, layer in enumerate(pool.layers):
                unclaimed.discard((layer, name))
                tensor = tensors[layer].get(name) if layer < len(tensors) else None
                with problems.absorbing(f"pools.{pool.name}.buffers.{buffer.name}"):
                    if tensor is None:
                        raise ConfigError.of("", f"layer {layer} of the cache keeps no '{name}'")
                    shape = _shape(pool, buffer, tensor, num_tokens)
                    places.append(Place(pool, buffer, index, layer, name, shape, tensor.device))
    for layer, name in sorted(unclaimed):
        what = f"layer {layer} of the cache keeps '{name}', {_text(tensors[layer][name])}"
        fix = "Is it the right family? hf_family=NAME chooses another"
        problems.add("pools", f"{what}, and no buffer claims it", fix)
    for number, kept in enumerate(layers_of(cache)):
        if any(hasattr(kept, name) for name in _STATES) and not tensors[number]:
            reason = f"layer {number} keeps its state in the model, and not in the cache"
            problems.add("pools", reason, "Such a model cannot be restored")
    problems.raise_if_any()
    return places


def _shape(
    pool: PoolSpec, buffer: BufferSpec, tensor: torch.Tensor, num_tokens: int
) -> tuple[int, ...]:
    """What ``tensor`` holds per token or per state.

    Raises:
        ConfigError: That is not what the buffer says.
    """
    own = tuple(tensor.shape[1:])
    fits = str(tensor.dtype) == f"torch.{buffer.dtype}"
    if pool.unit is not Unit.state:
        fits &= own[-2] == num_tokens // pool.tokens_per_row
        own = (*own[:-2], own[-1])
    if not fits or [n for n in own if n != 1] != [n for n in buffer.shape if n != 1]:
        per = "" if pool.unit is Unit.state else f" per {pool.tokens_per_row} tokens"
        said = f"{buffer.dtype} {list(buffer.shape)}{per}"
        reason = f"after {num_tokens} tokens the cache keeps {_text(tensor)}"
        raise ConfigError.of("", f"{reason}, and the schema says {said}")
    return own


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
