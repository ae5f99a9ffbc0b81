"""What pools must be to each other: whose ids they follow, what is anchored, what covers what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import ceil

from composer.errors import Problems, did_you_mean
from composer.schema import PoolConfig, PoolHitPolicy, Unit
from composer.spec import PoolSpec

Pools = Mapping[str, PoolConfig]


def hit_policy(pool: PoolConfig) -> PoolHitPolicy:
    """The policy a pool has: a state is always the one state at the boundary."""
    return PoolHitPolicy.trailing_pages if pool.unit is Unit.state else pool.hit_policy


def index_spaces(pools: Pools, problems: Problems) -> dict[str, str]:
    """Pool -> the pool whose free list holds its ids; pools with a broken chain are left out."""
    spaces: dict[str, str] = {}
    for name in pools:
        key = f"pools.{name}.indices_from_pool"
        chain = [name]
        while (source := pools[chain[-1]].indices_from_pool) is not None:
            if source not in pools:
                if len(chain) == 1:  # a longer chain is reported where it breaks
                    fix = did_you_mean(source, pools)
                    problems.add(key, f"there is no pool '{source}'", fix)
                break
            if source in chain:
                if source == name:
                    problems.add(key, _circle([*chain, source]), "Some pool must own the ids")
                break
            chain.append(source)
        else:
            spaces[name] = chain[-1]
    return spaces


def _circle(chain: list[str]) -> str:
    if len(chain) == 2:
        return f"pool '{chain[0]}' follows itself"
    return f"pools follow each other in a cycle: {' -> '.join(chain)}"


def check_sidecars(pools: Pools, draft: Set[str], problems: Problems) -> None:
    """A pool that follows another must be like it in what its ids stand for."""
    for name, pool in pools.items():
        source = pool.indices_from_pool
        if source is None or source not in pools or source == name:
            continue
        key, other = f"pools.{name}.indices_from_pool", pools[source]
        if (pool.unit is Unit.state) != (other.unit is Unit.state):
            problems.add(
                key,
                f"a pool of unit {pool.unit.name} cannot follow '{source}' of {other.unit.name}",
                "States follow states, tokens and pages follow tokens and pages",
            )
        elif hit_policy(pool) is not hit_policy(other):
            problems.add(
                key,
                f"a pool of {hit_policy(pool).name} cannot follow '{source}', "
                f"which keeps {hit_policy(other).name}",
                "One free list cannot keep both",
            )
        if source in draft and name not in draft:
            problems.add(key, f"'{source}' belongs to the draft layers and '{name}' does not")


def check_anchor(anchor: str | None, pools: Pools, draft: Set[str], problems: Problems) -> None:
    """The anchor owns its ids and keeps every page; only a model without such a pool has none."""
    fit = [
        name
        for name, pool in pools.items()
        if hit_policy(pool) is PoolHitPolicy.all_pages
        and pool.indices_from_pool is None
        and name not in draft
    ]
    if anchor is None:
        if fit:
            reason = f"there is none, and pools keep all pages: {', '.join(fit)}"
            problems.add("anchor", reason, "Name the one on which hits are counted")
    elif anchor not in pools:
        problems.add("anchor", f"there is no pool '{anchor}'", did_you_mean(anchor, pools))
    elif anchor not in fit:
        problems.add(
            "anchor",
            f"pool '{anchor}' cannot be it",
            "An anchor is no state or draft pool, keeps all pages and follows no other pool",
        )


def check_required(pools: Pools, draft: Set[str], problems: Problems) -> None:
    """Something must be required of a prefix, else every prompt would be a hit."""
    required = (
        pool.required and pool.prefix_cacheable and any(pool.buffers.values())
        for name, pool in pools.items()
        if name not in draft
    )
    if not any(required):
        problems.add(
            "pools",
            "no pool with buffers is both required and prefix_cacheable, so that every prompt "
            "would be a hit",
            "Let required and prefix_cacheable be true for what a prefix cannot do without",
        )


def check_windows(specs: Sequence[PoolSpec], page_size: int, problems: Problems) -> None:
    """An optional pool must not make its source keep more pages: a miss would shorten a hit."""
    required: dict[str, int] = {}
    for one in specs:
        if one.window_tokens is not None and one.required:
            required[one.index_space] = max(
                required.get(one.index_space, 0), ceil(one.window_tokens / page_size)
            )
    for one in specs:
        least = required.get(one.index_space)
        if least is None or one.window_tokens is None:
            continue
        if ceil(one.window_tokens / page_size) > least:
            problems.add(
                f"pools.{one.name}.window_tokens",
                f"an optional pool that looks back {one.window_tokens} tokens cannot follow "
                f"'{one.index_space}', which keeps {least} pages of {page_size} before a boundary",
                f"Give it at most {least * page_size}, or ids of its own",
            )


def check_partition(
    names: list[str], layers: Mapping[str, tuple[int, ...]], num_layers: int, problems: Problems
) -> None:
    """The pools ``names`` must own every layer of the model once; ``layers`` has all pools'."""
    unknown = [name for name in names if name not in layers]
    for name in unknown:
        problems.add("check.partition", f"there is no pool '{name}'", did_you_mean(name, layers))
    if not names or unknown:
        return
    owned = sorted(layer for name in names for layer in layers[name])
    if owned == list(range(num_layers)):
        return
    twice = sorted({layer for layer in owned if owned.count(layer) > 1})
    none = sorted(set(range(num_layers)) - set(owned))
    problems.add(
        "check.partition",
        f"{' and '.join(names)} do not own every layer once: layers {twice} twice, {none} not",
        "Look at their layers; lists may be counted from 1",
    )
