"""``job=plan``: what a preset composes into, without allocating anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from math import prod
from typing import Any

from composer.arena import ArenaSpec
from composer.config_overlay import layout_presets
from composer.errors import ConfigError
from composer.jobs import JobResult
from composer.jobs.origins import leaf_origins
from composer.jobs.plan_all import is_all, run_all
from composer.jobs.plan_report import show
from composer.plan import SpacePlan, StackPlan, arena_bytes, make_plan
from composer.registry import BACKENDS
from composer.resolve import resolve
from composer.schema import CliConfig, PoolHitPolicy, StackConfig, Unit
from composer.spec import PoolSpec
from composer.units import parse_bytes


@dataclass
class Params:
    """Nothing to set."""


def run(config: CliConfig, params: Params) -> JobResult:
    """Print the plan of a configuration.

    Raises:
        ConfigError: What ``compose`` would find wrong with it.
    """
    del params
    if is_all(config):
        return run_all()
    plan = make_plan(config, resolve(config))
    data = describe(config, plan)
    show(data)
    if config.json is not None:
        data["origins"] = leaf_origins(data["config"])
    return JobResult(data, objective="-bytes_per_million_tokens")


def describe(config: StackConfig, plan: StackPlan) -> dict[str, Any]:
    """Everything that is known about a stack before memory is touched, as plain data.

    Sizes are bytes and belong to this rank, where their name does not say ``model``.
    """
    spec = plan.spec
    off = {pool.name for pool in spec.draft_pools}
    pools = {
        pool.name: _pool(pool, plan.page_size) | {"enabled": pool.name not in off}
        for pool in (*spec.pools, *spec.draft_pools)
    }
    return {
        "model": spec.name,
        "engine": config.engine,
        "page_size": plan.page_size,
        "layout": {"name": _layout_name(config.layout.axes), "axes": list(config.layout.axes)},
        "ranks": asdict(config.parallel),
        "num_layers": spec.num_layers,
        "stage": list(spec.stage),
        "anchor": spec.anchor,
        "namespace": plan.namespace,
        "checkpoint_tokens": plan.checkpoint_pages * plan.page_size,
        "pools": pools,
        "spaces": {name: _space(space, plan) for name, space in plan.spaces.items()},
        "arenas": {arena.name: _arena(arena, plan) for arena in plan.arenas},
        "objects_per_million_tokens": plan.objects_per_million_tokens(),
        "bytes_per_million_tokens": plan.bytes_per_million_tokens(),
        **_budgets(config, plan),
        "config": _plain(asdict(config)),
    }


def _pool(pool: PoolSpec, page_size: int) -> dict[str, Any]:
    is_token = pool.unit is Unit.token
    is_ring = pool.unit is Unit.page and pool.hit_policy is PoolHitPolicy.trailing_pages
    per_token = is_token or (pool.unit is Unit.page and not is_ring)
    model_bytes = _model_page_bytes(pool)
    return {
        "layers": list(pool.layers),
        "model_layers": list(pool.all_layers),
        "layer_rule": pool.layer_rule,
        "producers": None if pool.producers is None else dict(pool.producers),
        "unit": pool.unit.name,
        "tokens_per_row": pool.tokens_per_row,
        "index_space": pool.index_space,
        "indices_from_pool": pool.indices_from_pool,
        "hit_policy": pool.hit_policy.name,
        "window_tokens": pool.window_tokens,
        "shard_class": pool.shard_class,
        "shard": pool.shard,
        "required": pool.required,
        "prefix_cacheable": pool.prefix_cacheable,
        "draft": pool.draft,
        "axes": list(pool.axes),
        "buffers": {
            buffer.name: {
                "shape": list(buffer.shape),
                "model_shape": list(buffer.full_shape),
                "dtype": buffer.dtype,
                "row_bytes": buffer.row_bytes,
            }
            for buffer in pool.buffers
        },
        "page_bytes": pool.page_bytes,
        "model_page_bytes": model_bytes,
        "bytes_per_token": _ratio(pool.page_bytes, page_size) if per_token else None,
        "model_bytes_per_token": _ratio(model_bytes, page_size) if per_token else None,
    }


def _model_page_bytes(pool: PoolSpec) -> int:
    rows = sum(prod(buffer.full_shape) * buffer.item_bytes for buffer in pool.buffers)
    return rows * pool.rows_per_page * len(pool.all_layers)


def _space(space: SpacePlan, plan: StackPlan) -> dict[str, Any]:
    host_bytes = sum(arena_bytes(arena, space.num_host_slots) for arena in space.arenas)
    payload_bytes = sum(arena.payload_bytes for arena in space.arenas)
    slots = {"host": space.num_host_slots, "device": space.num_device_slots}
    kept = space.window_pages
    return {
        "pools": [pool.name for pool in space.pools],
        "is_state": space.is_state,
        "window_pages": kept,
        **{f"{tier}_slots": count for tier, count in slots.items()},
        **{
            f"{tier}_tokens": None if space.is_state else count * plan.page_size
            for tier, count in slots.items()
        },
        **{
            f"{tier}_checkpoints": None if kept is None else count // kept
            for tier, count in slots.items()
        },
        "host_slot_bytes": space.host_slot_bytes,
        "device_slot_bytes": space.device_slot_bytes,
        "overhead_bytes": space.host_slot_bytes - payload_bytes,
        "host_bytes": host_bytes,
        "device_bytes": space.num_device_slots * space.device_slot_bytes,
        "host_share": _share(host_bytes, plan.host_budget_bytes),
    }


def _arena(arena: ArenaSpec, plan: StackPlan) -> dict[str, Any]:
    sections = arena.place(max(plan.spaces[arena.space].num_host_slots, 1))
    return {
        "space": arena.space,
        "pools": [pool.name for pool in arena.pools],
        "namespace": arena.namespace,
        "shard": arena.shard,
        "required": arena.required,
        "window_pages": arena.window_pages,
        "payload_bytes": arena.payload_bytes,
        "object_bytes": arena.object_bytes,
        "runs_per_page": sum(len(section.runs) for section in sections),
        "objects_per_million_tokens": plan.objects_per_million_tokens(arena),
        "bytes_per_million_tokens": plan.bytes_per_million_tokens(arena),
    }


def _budgets(config: StackConfig, plan: StackPlan) -> dict[str, Any]:
    """Memory asked for and used, per tier and together; what the store is lent counts, too."""
    lent = getattr(BACKENDS.innermost(config.backend), "segment", None)
    try:
        lent_bytes = 0 if lent is None else parse_bytes(lent)
    except ValueError as error:
        raise ConfigError.of("backend.segment", str(error)) from error
    host_memory, reserve = parse_bytes(config.host.memory), parse_bytes(config.host.reserve)
    return {
        "host_bytes": plan.host_bytes,
        "device_bytes": plan.device_bytes,
        "budgets": {
            "host_memory_bytes": host_memory,
            "host_reserve_bytes": reserve,
            "host_left_bytes": plan.host_budget_bytes - plan.host_bytes,
            "device_memory_bytes": plan.device_budget_bytes,
            "device_left_bytes": plan.device_budget_bytes - plan.device_bytes,
            "lent_bytes": lent_bytes,
            "sum_bytes": host_memory + plan.device_budget_bytes + lent_bytes,
        },
    }


def _layout_name(axes: list[str]) -> str | None:
    """The preset with these axes; None where there is none."""
    names = [name for name, known in layout_presets().items() if list(known) == list(axes)]
    return names[0] if names else None


def _ratio(num_bytes: int, count: int) -> int | float:
    return num_bytes // count if num_bytes % count == 0 else num_bytes / count


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _plain(value: Any) -> Any:
    """Enum members by their names, at any depth."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
