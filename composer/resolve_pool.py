"""One pool of a configuration -> its numbers on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from composer.errors import ConfigError, Problems
from composer.expression import Fields, evaluate_dtype, evaluate_size
from composer.layers import Choice, producers
from composer.relations import hit_policy
from composer.schema import BufferConfig, PoolConfig, PoolHitPolicy, StackConfig, Unit
from composer.spec import BufferSpec, PoolSpec, Split
from composer.split import lower_twins, name_shard, resolve_split, share


@dataclass(frozen=True)
class PoolScope:
    """What a pool is resolved with.

    Attributes:
        choices: The whole model's layers by pool.
        stage: First and past-the-last layer of this pipeline stage.
        problems: Where mistakes are noted; a spec made beside one is thrown away.
    """

    config: StackConfig
    fields: Fields
    choices: Mapping[str, Choice]
    stage: tuple[int, int]
    problems: Problems


def resolve_pool(name: str, pool: PoolConfig, space: str, scope: PoolScope) -> PoolSpec:
    """Numbers of pool ``name``, whose ids belong to index space ``space``."""
    config, choice = scope.config, scope.choices[name]
    if not pool.buffers and name != config.anchor:
        key = f"pools.{name}.buffers"
        scope.problems.add(key, "the pool has no buffer", "Only an anchor may have none")
    buffers = tuple(
        _buffer(f"pools.{name}.buffers.{buffer_name}", buffer_name, buffer, scope)
        for buffer_name, buffer in pool.buffers.items()
        if buffer is not None
    )
    _check_heads(name, pool, scope)
    tp, cp = config.parallel.tp, config.parallel.cp
    shard, shard_class = name_shard(buffers, pool.unit, tp.rank, tp.size)
    if cp.size > 1:
        shard += f".c{cp.rank}of{cp.size}"
    tokens_per_row = _tokens_per_row(pool, scope)
    return PoolSpec(
        name=name,
        unit=pool.unit,
        layers=_stage_layers(choice, scope),
        all_layers=choice.layers[: config.layers_per_pool],
        buffers=buffers,
        index_space=space,
        hit_policy=hit_policy(pool),
        axes=tuple(config.layout.axes if pool.layout is None else pool.layout),
        rows_per_page=config.page_size // tokens_per_row if pool.unit is Unit.token else 1,
        tokens_per_row=tokens_per_row,
        window_tokens=_window_tokens(name, pool, scope),
        indices_from_pool=pool.indices_from_pool,
        producers=_producers(name, pool, scope),
        layer_rule=choice.rule,
        required=pool.required,
        prefix_cacheable=pool.prefix_cacheable,
        draft=choice.draft,
        shard=shard,
        shard_class=shard_class,
        twins=lower_twins(buffers, tp.rank, tp.size),
        weight=pool.weight,
        exclude=dict(pool.exclude) or None,
    )


def _check_heads(name: str, pool: PoolConfig, scope: PoolScope) -> None:
    """A row of tokens is cells one after another, so only its first axis can be ``head``."""
    for buffer_name, buffer in pool.buffers.items():
        split = buffer and buffer.split
        if pool.unit is Unit.token and split and split.axis != 0:
            scope.problems.add(
                f"pools.{name}.buffers.{buffer_name}.split.axis",
                f"axis {split.axis} of a token buffer cannot be the layout's 'head' axis",
                "Put the axis that is cut first in the shape",
            )


def _stage_layers(choice: Choice, scope: PoolScope) -> tuple[int, ...]:
    """This stage's layers of those kept; draft layers belong to the last stage."""
    kept = choice.layers[: scope.config.layers_per_pool]
    pp = scope.config.parallel.pp
    if choice.draft:
        return kept if pp.rank == pp.size - 1 else ()
    first, end = scope.stage
    return tuple(layer for layer in kept if first <= layer < end)


def _tokens_per_row(pool: PoolConfig, scope: PoolScope) -> int:
    try:
        return evaluate_size(pool.tokens_per_row, scope.fields)
    except ConfigError:  # noted when the page size was judged
        return 1


def _window_tokens(name: str, pool: PoolConfig, scope: PoolScope) -> int | None:
    key = f"pools.{name}.window_tokens"
    windowed = hit_policy(pool) is PoolHitPolicy.trailing_pages and pool.unit is not Unit.state
    if pool.window_tokens is None:
        if windowed:
            reason = "a pool of trailing_pages needs it"
            scope.problems.add(key, reason, "Name the tokens that its layers look back")
        return None
    if not windowed:
        kept = "one state" if pool.unit is Unit.state else "all_pages"
        scope.problems.add(key, f"a pool that keeps {kept} has no window", "Remove it")
        return None
    try:
        return evaluate_size(pool.window_tokens, scope.fields)
    except ConfigError as error:
        scope.problems.absorb(error, key)
        return None


def _producers(name: str, pool: PoolConfig, scope: PoolScope) -> dict[int, int] | None:
    """Consumers -> producers, judged on the whole model, then kept to the layers kept."""
    choice, k = scope.choices[name], scope.config.layers_per_pool
    if not choice.shared:
        return None
    source = scope.choices.get(pool.indices_from_pool or "")
    consumers = source.layers if source else tuple(range(choice.layers[-1] + 1))
    try:
        relation = producers(choice, consumers)
    except ConfigError as error:
        scope.problems.absorb(error, f"pools.{name}.layers")
        return None
    asked, owned = set(consumers[:k]), set(choice.layers[:k])
    return {layer: by for layer, by in relation.items() if layer in asked and by in owned}


def _buffer(key: str, name: str, buffer: BufferConfig, scope: PoolScope) -> BufferSpec:
    fields, problems = scope.fields.recorder(), scope.problems
    shape: list[int] = []
    for dimension in buffer.shape:
        try:
            shape.append(evaluate_size(dimension, fields))
        except ConfigError as error:
            problems.absorb(error, f"{key}.shape")
    if not buffer.shape:
        problems.add(f"{key}.shape", "the shape is empty", "A row has at least one number")
    try:
        dtype = evaluate_dtype(buffer.dtype, scope.config.dtypes, fields)
    except ConfigError as error:
        problems.absorb(error, f"{key}.dtype")
        dtype = "uint8"
    full = tuple(shape)
    split = _split(key, buffer, full, scope) if len(full) == len(buffer.shape) else None
    return BufferSpec(
        name=name,
        full_shape=full,
        shape=share(full, split),
        dtype=dtype,
        split=split,
        fields=tuple(sorted(fields.read.items())),
    )


def _split(
    key: str, buffer: BufferConfig, shape: tuple[int, ...], scope: PoolScope
) -> Split | None:
    if buffer.split is None:
        return None
    tp = scope.config.parallel.tp
    try:
        return resolve_split(buffer.split, shape, scope.fields, tp.rank, tp.size)
    except ConfigError as error:
        scope.problems.absorb(error, f"{key}.split")
        return None
