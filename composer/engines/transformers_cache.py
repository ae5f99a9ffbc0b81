"""Where transformers keeps what a schema names, and whether it keeps anything else.

A cache is a list of layers. A layer keeps tensors ``[1, heads, token, dim]`` (or without heads)
that grow with every token, and tensors ``[1, *shape]`` that stand for all tokens so far. Which one
a buffer is follows from the buffer's name; that the shapes agree is checked on a cache that the
model itself has filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    "compressed": "compressed_kv.compressor",
    "compressed_key": "compressed_kv.indexer",
    "overlap": "overlap_kv.compressor",
    "overlap_score": "overlap_gate.compressor",
    "key_overlap": "overlap_kv.indexer",
    "key_overlap_score": "overlap_gate.indexer",
}
_STATES = ("conv_states", "recurrent_states")
_OTHER_FAMILY = "Is it the right family? hf_family=NAME chooses another"


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


def probe(model: Any, spec: ModelSpec) -> DynamicCache:
    """A cache that a model has filled with the tokens of one page."""
    cache, num_tokens = new_cache(model.config, spec), spec.page_size
    ids = torch.arange(num_tokens, device=model.device)[None]
    with torch.inference_mode():
        model(
            input_ids=ids % model.config.get_text_config().vocab_size,
            position_ids=ids,
            cache=cache,
            use_cache=True,
        )
    return cache


def new_cache(config: Any, spec: ModelSpec) -> DynamicCache:
    """An empty cache. Windows that are kept in pages keep all they are given until trimmed."""
    cache = DynamicCache(config=config)
    paged = {layer for pool in spec.pools if pool.window_tokens for layer in pool.layers}
    for number, layer in enumerate(layers_of(cache)):
        if number in paged and is_windowed(layer):
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


def find_places(spec: ModelSpec, cache: DynamicCache) -> list[Place]:
    """Every buffer of a schema in a cache that a model has filled.

    Args:
        spec: The schema, on one rank.
        cache: From ``probe``.

    Raises:
        ConfigError: A buffer is not in the cache, or has another shape or dtype there; or the
            cache holds a tensor that no buffer claims, or a layer that keeps its state elsewhere.
    """
    problems, places, layers = Problems(), [], layers_of(cache)
    for pool in spec.pools:
        for buffer in pool.buffers:
            for index in range(len(pool.layers)):
                with problems.absorbing(f"pools.{pool.name}.buffers.{buffer.name}"):
                    places.append(_place(pool, buffer, index, layers, spec.page_size))
    _check_coverage(spec, layers, problems)
    problems.raise_if_any()
    return places


def _place(
    pool: PoolSpec, buffer: BufferSpec, index: int, layers: Sequence[Any], num_tokens: int
) -> Place:
    """One buffer of the pool's layer number ``index``.

    Raises:
        ConfigError: The cache does not keep it, or not as the schema says.
    """
    number, name = pool.layers[index], ATTRIBUTES.get(buffer.name, buffer.name)
    tensor = held(layers[number]).get(name) if number < len(layers) else None
    if tensor is None:
        raise ConfigError.of("", f"layer {number} of the cache keeps no '{name}'")
    own = tuple(tensor.shape[1:])
    fits = str(tensor.dtype) == f"torch.{buffer.dtype}"
    if pool.unit is not Unit.state:
        if name in ("keys", "values"):
            _check_window(pool, number, layers[number])
        fits &= own[-2] == num_tokens // pool.tokens_per_row
        own = (*own[:-2], own[-1])
    if not fits or [n for n in own if n != 1] != [n for n in buffer.shape if n != 1]:
        per = "" if pool.unit is Unit.state else f" per {pool.tokens_per_row} tokens"
        said = f"the schema says {buffer.dtype} {list(buffer.shape)}{per}"
        what = f"layer {number} of the cache keeps {_text(tensor)} of {num_tokens} tokens"
        raise ConfigError.of("", f"{what}, and {said}")
    return Place(pool, buffer, index, number, name, own, tensor.device)


def _check_window(pool: PoolSpec, number: int, layer: Any) -> None:
    """Refuse a pool that keeps fewer tokens than a layer looks back, or more than it has."""
    window = layer.sliding_window - 1 if is_windowed(layer) else None  # and the token itself
    kept = pool.window_tokens
    if (window is None) != (kept is None) or (window or 0) > (kept or 0):
        what = f"layer {number} of the cache keeps {window or 'all'} tokens"
        reason = f"{what}, and the pool's window_tokens are {kept or 'all'}"
        raise ConfigError.of("", reason, _OTHER_FAMILY)


def _check_coverage(spec: ModelSpec, layers: Sequence[Any], problems: Problems) -> None:
    """Note every tensor that no buffer claims, and every layer that keeps its state elsewhere."""
    claimed = {
        (layer, name)
        for pool in spec.pools
        for layer in pool.layers
        for name in (*(ATTRIBUTES.get(b.name, b.name) for b in pool.buffers), *(pool.exclude or ()))
    }
    for number, layer in enumerate(layers):
        found = held(layer)
        for name in sorted(name for name in found if (number, name) not in claimed):
            what = f"layer {number} of the cache keeps '{name}', {_text(found[name])}"
            problems.add("pools", f"{what}, and no buffer claims it", _OTHER_FAMILY)
        if any(hasattr(layer, name) for name in _STATES) and not found:
            reason = f"layer {number} keeps its state in the model, and not in the cache"
            problems.add("pools", reason, "Such a model cannot be restored")


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
