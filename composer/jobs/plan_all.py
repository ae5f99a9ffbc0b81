"""job=plan model=all: one line for each preset there is, a user's own among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from composer.config import load_models, model_families
from composer.errors import ConfigError
from composer.jobs import JobResult
from composer.jobs.running import running_request
from composer.jobs.tables import make_console, make_table
from composer.plan import make_plan
from composer.resolve import resolve
from composer.schema import CliConfig, PoolHitPolicy, StackConfig, Unit
from composer.schema_store import ALL
from composer.spec import PoolSpec

_COLUMNS = (
    "model", "family", "layers by pool", ">bytes/token", ">window bytes/token",
    ">bytes/checkpoint", ">objects/1M tokens", "namespace",
)  # fmt: skip


def is_all(config: CliConfig) -> bool:
    """Whether every preset is meant, rather than one."""
    return config.model.name == ALL and not config.pools


def run_all() -> JobResult:
    """Print the table of all presets under the running command's other overrides.

    Not ok where a preset does not compose with them; its line says why.

    Raises:
        ConfigError: There is no running command whose overrides could hold.
    """
    request = running_request()
    if request is None:
        fix = "Load presets one by one, or run: kvpool job=plan model=all"
        raise ConfigError.of("model", "only the command plans all presets", fix)
    families = model_families(request)
    configs = load_models(request, families)
    rows = {
        name: {"family": family} | _summary(config)
        for (name, family), config in zip(families.items(), configs, strict=True)
    }
    show_all(rows)
    return JobResult({"models": rows}, ok=not any("error" in row for row in rows.values()))


def _summary(loaded: StackConfig | ConfigError) -> dict[str, Any]:
    """A preset's figures, or what is wrong with it."""
    try:
        return summary(loaded) if isinstance(loaded, StackConfig) else {"error": str(loaded)}
    except ConfigError as error:
        return {"error": str(error)}


def summary(config: StackConfig) -> dict[str, Any]:
    """A preset in few figures, of this rank.

    ``bytes_per_token`` are of pools that keep all pages, ``window_bytes_per_token`` of those that
    keep the last ones; ``checkpoint_bytes`` are the states and rings that one checkpoint adds.

    Raises:
        ConfigError: It does not compose.
    """
    plan = make_plan(config, resolve(config))
    pools = [pool for pool in plan.spec.pools if pool.buffers]
    kept = {kind: [pool for pool in pools if _kind(pool) == kind] for kind in ("all", "last", "")}
    return {
        "name": config.model.name,
        "page_size": config.page_size,
        "layers": {pool.name: len(pool.layers) for pool in pools},
        "bytes_per_token": _per_token(kept["all"], config.page_size),
        "window_bytes_per_token": _per_token(kept["last"], config.page_size),
        "checkpoint_bytes": sum(pool.page_bytes for pool in kept[""]),
        "objects_per_million_tokens": plan.objects_per_million_tokens(),
        "namespace": plan.namespace,
    }


def _kind(pool: PoolSpec) -> str:
    """Which tokens a pool keeps: all, the last ones; none where it keeps states or rings."""
    if pool.hit_policy is PoolHitPolicy.all_pages:
        return "all"
    return "last" if pool.unit is Unit.token else ""


def _per_token(pools: list[PoolSpec], page_size: int) -> int | float:
    num_bytes = sum(pool.page_bytes for pool in pools)
    return num_bytes // page_size if num_bytes % page_size == 0 else num_bytes / page_size


def show_all(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line for each preset."""
    make_console().print(make_table("Presets", _COLUMNS, list(_lines(rows))))


def _lines(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[object, ...]]:
    for name, row in rows.items():
        if "error" in row:
            yield name, row["family"], row["error"], *[None] * 5
            continue
        yield (
            name,
            row["family"],
            ", ".join(f"{pool} {count}" for pool, count in row["layers"].items()),
            row["bytes_per_token"],
            row["window_bytes_per_token"] or None,
            row["checkpoint_bytes"] or None,
            row["objects_per_million_tokens"],
            row["namespace"],
        )
