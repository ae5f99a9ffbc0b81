"""Every preset against figures of a catalogue that was made apart from this package."""

import json
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path

import pytest

from composer.resolve import resolve
from composer.schema import PoolHitPolicy, Unit
from composer.spec import BufferSpec, ModelSpec, PoolSpec
from tests.model_configs import ENGINES, PRESETS, ranks, stack_config

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "models.json").read_text())
del GOLDENS["_about"]


def layers(text: str) -> tuple[int, ...]:
    """``0,3-9/2`` -> (0, 3, 5, 7, 9)."""

    def run(item: str) -> range:
        ends, _, step = item.partition("/")
        first, _, last = ends.partition("-")
        return range(int(first), int(last or first) + 1, int(step or 1))

    return tuple(layer for item in text.split(",") for layer in run(item))


def described(spec: ModelSpec) -> dict[str, PoolSpec]:
    return {pool.name: pool for pool in (*spec.pools, *spec.draft_pools) if pool.buffers}


def golden_bytes(pool: PoolSpec, page_size: int) -> float:
    """Bytes per token of a pool of tokens or packed pages, per state or ring else."""
    is_ring = pool.unit is Unit.page and pool.hit_policy is PoolHitPolicy.trailing_pages
    return pool.page_bytes if pool.unit is Unit.state or is_ring else pool.page_bytes / page_size


def test_the_catalogue_and_the_presets_are_the_same_49_models():
    assert set(PRESETS) == set(GOLDENS)
    assert len(PRESETS) == 49


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", PRESETS)
def test_a_preset_has_the_pools_layers_and_bytes_of_the_catalogue(model, engine):
    config = stack_config(model, engine)
    pools = described(resolve(config))
    wanted = GOLDENS[model]["pools"]
    assert {name: pool.layers for name, pool in pools.items()} == {
        name: layers(pool["layers"]) for name, pool in wanted.items()
    }
    assert {name: golden_bytes(pool, config.page_size) for name, pool in pools.items()} == {
        name: pool[engine] for name, pool in wanted.items()
    }


@pytest.mark.parametrize("model", PRESETS)
def test_a_preset_has_the_totals_of_the_catalogue(model):
    config = stack_config(model)
    of_states = resolve(config)
    of_tokens = resolve(stack_config(model, "transformers"))  # index keys in bf16, as there
    totals = GOLDENS[model]["catalogue"]

    def total(spec: ModelSpec, *kinds: tuple[bool, bool]) -> float:
        """Sum over pools of the kinds (keeps all pages, draft), without states and rings."""
        return sum(
            pool.page_bytes / config.page_size
            for name, pool in described(spec).items()
            if (pool.hit_policy is PoolHitPolicy.all_pages, pool.draft) in kinds
            and not name.endswith("_state")
            and pool.unit is not Unit.state
        )

    assert total(of_tokens, (True, False)) == totals["bytes_per_token"]
    assert total(of_tokens, (False, False)) == totals["window_bytes_per_token"]
    assert total(of_tokens, (True, True), (False, True)) == totals["draft_bytes_per_token"]
    states = [p for p in of_states.pools if p.unit is Unit.state or p.name.endswith("_state")]
    assert sum(pool.page_bytes for pool in states) == totals["state_bytes"]
    windows = {p.window_tokens for p in of_states.pools if p.name == "swa"}
    assert windows == ({totals["window_tokens"]} if totals["window_tokens"] else set())


@pytest.mark.parametrize("model", PRESETS)
def test_conventions_never_differ_in_layers_or_windows(model):
    one, other = (described(resolve(stack_config(model, engine))) for engine in ENGINES)
    kept = [
        {n: (p.layers, p.window_tokens, p.index_space) for n, p in s.items()} for s in (one, other)
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("model", PRESETS)
def test_drafting_adds_optional_pools_and_changes_no_other(model):
    config = stack_config(model)
    without = resolve(config)
    config.draft = True
    drafting = resolve(config)
    assert tuple(pool for pool in drafting.pools if not pool.draft) == without.pools
    assert tuple(pool for pool in drafting.pools if pool.draft) == without.draft_pools
    assert all(not pool.required for pool in without.draft_pools)
    assert drafting.stage == without.stage


def test_the_sparse_attention_pages_have_their_published_sizes():
    spec = resolve(stack_config("deepseek_v3_2"))
    assert spec.page_size == 64
    assert spec.pool("kv").page_bytes == 4_497_408
    assert spec.pool("indexer").page_bytes == 515_328
    assert ceil(1_000_000 / spec.page_size) == 15_625


def pieces(pool: PoolSpec, stage: int) -> Iterator[tuple[object, int]]:
    """What a rank holds of a pool, piece by piece, with its bytes."""
    rows = pool.rows_per_page * len(pool.layers)
    for buffer in pool.buffers:
        if buffer.split is None:
            yield (stage, buffer.name), rows * buffer.row_bytes
            continue
        rest = prod(buffer.shape) // buffer.shape[buffer.split.axis] * buffer.item_bytes
        cuts = zip(buffer.split.unit_ranges, buffer.split.unit_size, strict=True)
        for part, ((first, end), unit) in enumerate(cuts):
            yield (stage, buffer.name, part, first, end), rows * rest * (end - first) * unit


@pytest.mark.parametrize("model", PRESETS)
def test_the_bytes_of_all_ranks_add_up_to_the_model_with_replicas_counted_once(model):
    whole = described(resolve(stack_config(model)))
    for tp, pp in ((tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4)):
        specs = ranks(stack_config(model), tp, pp)
        for name, pool in whole.items():
            held: dict[object, int] = {}
            shards: dict[object, int] = {}
            for (_, stage), spec in specs.items():
                mine = described(spec)[name]
                share = dict(pieces(mine, stage))
                assert sum(share.values()) == mine.page_bytes
                held.update(share)
                assert shards.setdefault((stage, mine.shard), mine.page_bytes) == mine.page_bytes
            assert sum(held.values()) == pool.page_bytes, (name, tp, pp)


@pytest.mark.parametrize("model", PRESETS)
def test_ranks_with_one_shard_name_hold_the_same_pieces_and_others_do_not(model):
    for tp in (2, 8):
        named: dict[tuple[str, str], set[object]] = {}
        for (rank, _), spec in ranks(stack_config(model), tp, 1).items():
            for pool in described(spec).values():
                held = frozenset(key for key, _ in pieces(pool, 0))
                named.setdefault((pool.name, pool.shard), set()).add(held)
                assert (pool.shard == "r") == (pool.shard_class == "replicated"), rank
        assert all(len(held) == 1 for held in named.values())
        by_pool: dict[str, list[object]] = {}
        for (pool, _), held in named.items():
            by_pool.setdefault(pool, []).extend(held)
        assert all(len(held) == len(set(held)) for held in by_pool.values())


def channels(buffer: BufferSpec) -> list[int]:
    """Channels of the whole model's split axis that a rank holds, in order."""
    assert buffer.split is not None
    held, start = [], 0
    split = buffer.split
    for part, unit, (first, end) in zip(
        split.parts, split.unit_size, split.unit_ranges, strict=True
    ):
        held += range(start + first * unit, start + end * unit)
        start += part
    return held


@pytest.mark.parametrize(
    "model", ["qwen3_next_80b", "mamba2_2_7b", "kimi_linear_48b", "falcon_h1_34b"]
)
def test_a_convolution_is_cut_part_by_part_which_a_contiguous_cut_is_not(model):
    name = next(p.name for p in resolve(stack_config(model)).pools if p.unit is Unit.state)
    for (rank, _), spec in ranks(stack_config(model), 2, 1).items():
        conv = next(buffer for buffer in spec.pool(name).buffers if buffer.name == "conv")
        axis = conv.split.axis
        assert len(channels(conv)) == conv.shape[axis]
        half = conv.full_shape[axis] // 2
        assert channels(conv) != list(range(rank * half, (rank + 1) * half))
