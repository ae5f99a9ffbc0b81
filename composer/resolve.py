"""A typed configuration -> plain numbers: every expression resolved, cut to one rank.

Pure arithmetic. The whole model is judged first (layers, relations between pools), then each pool
is cut to this rank; every mistake found on the way is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

from composer.errors import ConfigError, Problems
from composer.expression import Fields, evaluate_size
from composer.layers import Choice, LayerScope, choose
from composer.relations import (
    check_anchor,
    check_partition,
    check_required,
    check_sidecars,
    check_windows,
    index_spaces,
)
from composer.resolve_pool import PoolScope, resolve_pool
from composer.schema import ParallelConfig, PoolConfig, StackConfig
from composer.spec import ModelSpec


def resolve(config: StackConfig) -> ModelSpec:
    """Resolve a configuration whose engine overlay is laid and whose nulls are dropped.

    Raises:
        ConfigError: With every mistake that was found, each with its dotted key.
    """
    problems = Problems()
    model = _model(config, problems)
    problems.raise_if_any()
    choices = _Chooser(model, problems).all()
    _relate(model, choices, problems)
    spaces = index_spaces(model.pools, problems)
    _check_page_size(model, problems)
    scope = PoolScope(config, model.fields, choices, model.stage, problems)
    specs = [
        resolve_pool(name, pool, spaces.get(name, name), scope)
        for name, pool in model.pools.items()
        if choices[name].layers  # a model may have no draft layers
    ]
    check_windows(specs, config.page_size, problems)
    problems.raise_if_any()
    return ModelSpec(
        name=config.model.name,
        page_size=config.page_size,
        num_layers=model.num_layers,
        pools=tuple(spec for spec in specs if config.draft or not spec.draft),
        draft_pools=tuple(spec for spec in specs if spec.draft and not config.draft),
        anchor=config.anchor,
        stage=model.stage,
        identity=_identity(config),
        objects=config.storage.objects,
    )


def _relate(model: _Model, choices: Mapping[str, Choice], problems: Problems) -> None:
    """Check the pools against each other."""
    config, pools = model.config, model.pools
    draft = {name for name, choice in choices.items() if choice.draft}
    check_sidecars(pools, draft, problems)
    check_anchor(config.anchor, pools, draft, problems)
    check_required(pools, draft, problems)
    if not any(problem.key.endswith(".layers") for problem in problems.found):
        layers = {name: choice.layers for name, choice in choices.items()}
        check_partition(config.check.partition, layers, model.num_layers, problems)


def _identity(config: StackConfig) -> dict[str, str]:
    return {
        "deployment": config.deployment,
        "model": config.model.name,
        "revision": config.model.revision,
        "quantization": config.model.quantization,
        "engine": config.engine,
        "engine_version": config.engine_version,
    }


@dataclass(frozen=True)
class _Model:
    """What all pools share: the whole model's numbers and this rank's stage."""

    config: StackConfig
    fields: Fields
    pools: dict[str, PoolConfig]
    num_layers: int
    num_draft_layers: int
    stage: tuple[int, int]


def _model(config: StackConfig, problems: Problems) -> _Model:
    if config.page_size < 1:
        problems.add("page_size", f"page_size is {config.page_size}", "It must be at least 1")
    if config.checkpoint_tokens < 1:
        reason = f"checkpoint_tokens is {config.checkpoint_tokens}"
        problems.add("checkpoint_tokens", reason, "It must be at least 1")
    if config.layers_per_pool is not None and config.layers_per_pool < 1:
        reason = f"layers_per_pool is {config.layers_per_pool}"
        problems.add("layers_per_pool", reason, "It must be at least 1; null keeps all layers")
    pools = {name: pool for name, pool in config.pools.items() if pool is not None}
    if not pools:
        problems.add("pools", "there is no pool", "Choose a model, or describe its pools")
    fields = Fields(config.config, max(config.page_size, 1), config.dims)
    num_layers = _size("num_layers", config.num_layers, fields, 1, problems)
    num_draft = _size("num_draft_layers", config.num_draft_layers, fields, 0, problems)
    _check_ranks(config.parallel, num_layers, problems)
    pp = config.parallel.pp
    return _Model(
        config=config,
        fields=fields,
        pools=pools,
        num_layers=num_layers,
        num_draft_layers=num_draft,
        stage=stage_layers(num_layers, pp.rank, max(pp.size, 1)),
    )


def stage_layers(num_layers: int, rank: int, size: int) -> tuple[int, int]:
    """First and past-the-last layer of a pipeline stage; earlier stages get the extra layers."""
    even, extra = divmod(num_layers, size)
    first = rank * even + min(rank, extra)
    return first, first + even + (rank < extra)


def _check_ranks(parallel: ParallelConfig, num_layers: int, problems: Problems) -> None:
    for name, place in (("tp", parallel.tp), ("pp", parallel.pp), ("cp", parallel.cp)):
        if place.size < 1:
            problems.add(f"parallel.{name}.size", f"size is {place.size}", "It is at least 1")
        elif not 0 <= place.rank < place.size:
            fix = f"Ranks of a size of {place.size} are 0 to {place.size - 1}"
            problems.add(f"parallel.{name}.rank", f"rank is {place.rank}", fix)
    if num_layers and parallel.pp.size > num_layers:
        reason = f"{parallel.pp.size} stages for {num_layers} layers"
        problems.add("parallel.pp.size", reason, f"It is at most {num_layers}")


def _size(key: str, dimension: int | str, fields: Fields, least: int, problems: Problems) -> int:
    """A dimension's value; where it has none the problem is noted, and ``least`` stands in."""
    try:
        return evaluate_size(dimension, fields, least)
    except ConfigError as error:
        problems.absorb(error, key)
        return least


class _Chooser:
    """Chooses every pool's layers; rules that name another pool wait for that pool's."""

    def __init__(self, model: _Model, problems: Problems) -> None:
        self._pools = model.pools
        self._problems = problems
        self._chosen: dict[str, Choice | None] = {}
        self._scope = LayerScope(
            model.fields, model.num_layers, model.num_draft_layers, self._layers_of
        )

    def all(self) -> dict[str, Choice]:
        """Choices by pool; where a rule is wrong its problem is noted, and all layers stand in."""
        every = Choice(tuple(range(self._scope.num_layers)), "")
        return {name: self._choose(name) or every for name in self._pools}

    def _choose(self, name: str) -> Choice | None:
        if name not in self._chosen:
            self._chosen[name] = None  # what a circle of rules finds
            try:
                self._chosen[name] = self._choice(name)
            except ConfigError as error:
                self._problems.absorb(error, f"pools.{name}.layers")
        return self._chosen[name]

    def _choice(self, name: str) -> Choice:
        pool = self._pools[name]
        choice = choose(pool.layers, self._scope)
        source = pool.indices_from_pool
        if not choice.shared or source not in self._pools or source is None:
            return choice
        # Only the source's layers ask for rows, so only they can share or own them.
        asked = set(self._layers_of(source))
        layers = tuple(layer for layer in choice.layers if layer in asked)
        if not layers:
            raise ConfigError.of("", f"{choice.rule} chooses no layer of pool '{source}'")
        return Choice(layers, choice.rule, choice.shared, choice.draft)

    def _layers_of(self, name: str) -> tuple[int, ...]:
        if name not in self._pools:
            fix = f"Known: {', '.join(self._pools)}"
            raise ConfigError.of("", f"there is no pool '{name}'", fix)
        choice = self._choose(name)
        if choice is None:
            raise ConfigError.of("", f"it depends on the layers of '{name}', which are not known")
        return choice.layers


def _check_page_size(model: _Model, problems: Problems) -> None:
    """The page must be whole rows of every pool: one problem, with sizes that would do."""
    page_size, multiples = model.fields.page_size, {}
    for name, pool in model.pools.items():
        for word in ("tokens_per_row", "page_multiple"):
            dimension = getattr(pool, word)
            if dimension is not None:
                key = f"pools.{name}.{word}"
                multiples[key] = _size(key, dimension, model.fields, 1, problems)
    wrong = [f"{size} ({key})" for key, size in multiples.items() if page_size % size]
    if wrong:
        step = lcm(*multiples.values())
        below, above = page_size // step * step, (page_size // step + 1) * step
        nearest = f"{below} or {above}" if below else f"{above}"
        reason = f"page_size {page_size} is no multiple of {', '.join(wrong)}"
        problems.add("page_size", reason, f"The nearest legal sizes: {nearest}")
