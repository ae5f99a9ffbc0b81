import pytest

from composer.errors import ConfigError
from composer.resolve import resolve, stage_layers
from composer.schema import (
    BufferConfig,
    CheckConfig,
    LayoutConfig,
    ModelConfig,
    ParallelConfig,
    PoolConfig,
    PoolHitPolicy,
    RankConfig,
    SplitConfig,
    StackConfig,
    Unit,
)
from tests.model_configs import ranks

AXES = ["page", "buffer", "layer", "token", "head"]
TRAILING = PoolHitPolicy.trailing_pages


def buffer(*shape, dtype="bfloat16", split=None):
    return BufferConfig(list(shape), dtype, split)


def heads(**settings):
    return PoolConfig(buffers={"k": buffer("heads", 16, split=SplitConfig())}, **settings)


def plain(**settings):
    return PoolConfig(buffers={"x": buffer(4)}, **settings)


def state(**settings):
    return PoolConfig(unit=Unit.state, buffers={"s": buffer("heads", 4)}, **settings)


def stack(pools, anchor="kv", **settings):
    values = {"num_layers": 8, "page_size": 64, "config": {"heads": 8, "window": 100}, **settings}
    layout = LayoutConfig(AXES)
    return StackConfig(ModelConfig("m"), pools=pools, anchor=anchor, layout=layout, **values)


def tp(rank, size):
    return ParallelConfig(tp=RankConfig(rank, size))


def problems(config):
    with pytest.raises(ConfigError) as error:
        resolve(config)
    return {problem.key: str(problem) for problem in error.value.problems}


def test_a_pool_becomes_plain_numbers():
    spec = resolve(stack({"kv": heads()}))
    pool = spec.pool("kv")
    assert (pool.layers, pool.rows_per_page, pool.page_bytes) == (tuple(range(8)), 64, 8 * 64 * 256)
    assert (pool.shard, pool.shard_class, pool.axes) == ("h0-7of8", "heads", tuple(AXES))
    assert pool.buffers[0].fields == (("heads", 8),)
    assert (spec.anchor, spec.stage, spec.num_layers) == ("kv", (0, 8), 8)


def test_the_identity_names_all_that_enters_a_namespace_beside_the_pools():
    config = stack({"kv": heads()}, engine="e", engine_version="1", deployment="d")
    config.model = ModelConfig("m", "somewhere", "r", "q")
    names = ("deployment", "model", "revision", "quantization", "engine", "engine_version")
    assert resolve(config).identity == dict(zip(names, ("d", "m", "r", "q", "e", "1"), strict=True))


def test_a_pool_may_have_a_layout_of_its_own():
    axes = ["buffer", "page", "token", "layer", "head"]
    spec = resolve(stack({"kv": heads(), "x": plain(indices_from_pool="kv", layout=axes)}))
    assert spec.pool("x").axes == tuple(axes)


def test_index_spaces_follow_chains_to_their_end():
    pools = {
        "c": plain(indices_from_pool="b"),
        "b": plain(indices_from_pool="kv"),
        "kv": heads(),
        "lone": plain(),
    }
    spec = resolve(stack(pools))
    spaces = {name: [pool.name for pool in pools] for name, pools in spec.spaces.items()}
    assert spaces == {"kv": ["kv", "c", "b"], "lone": ["lone"]}


@pytest.mark.parametrize(
    ("pools", "key", "words"),
    [
        ({"x": plain(indices_from_pool="kvv")}, "x", "no pool 'kvv'. Did you mean 'kv'"),
        ({"x": plain(indices_from_pool="x")}, "x", "'x' follows itself"),
        (
            {"x": plain(indices_from_pool="y"), "y": plain(indices_from_pool="x")},
            "x",
            "cycle: x -> y -> x",
        ),
        ({"x": state(indices_from_pool="kv")}, "x", "unit state cannot follow 'kv' of token"),
        (
            {"x": plain(indices_from_pool="kv", hit_policy=TRAILING, window_tokens=9)},
            "x",
            "trailing_pages cannot follow 'kv', which keeps all_pages",
        ),
        (
            {"w": plain(hit_policy=TRAILING, window_tokens=9), "x": plain(indices_from_pool="w")},
            "x",
            "all_pages cannot follow 'w'",
        ),
        ({"d": plain(layers="draft"), "x": plain(indices_from_pool="d")}, "x", "draft layers"),
    ],
)
def test_a_wrong_index_source_is_named_with_its_value(pools, key, words):
    found = problems(stack({"kv": heads(), **pools}, num_draft_layers=1))
    assert words in found[f"pools.{key}.indices_from_pool"]


@pytest.mark.parametrize(
    ("anchor", "words"),
    [
        ("kvv", "Did you mean 'kv'"),
        ("s", "cannot be it"),
        ("w", "cannot be it"),
        ("x", "cannot be it"),
        (None, "pools keep all pages: kv"),
    ],
)
def test_only_a_pool_that_owns_ids_and_keeps_all_pages_can_be_the_anchor(anchor, words):
    pools = {
        "kv": heads(),
        "x": plain(indices_from_pool="kv"),
        "w": plain(hit_policy=TRAILING, window_tokens=9),
        "s": state(),
    }
    assert words in problems(stack(pools, anchor))["anchor"]


def test_a_pure_state_model_has_no_anchor_and_its_states_are_trailing():
    spec = resolve(stack({"s": state()}, anchor=None))
    assert spec.anchor is None
    assert spec.pool("s").hit_policy is TRAILING
    assert (spec.pool("s").rows_per_page, spec.is_state("s")) == (1, True)


def test_only_an_anchor_may_have_no_buffers():
    pools = {"kv": PoolConfig(), "x": plain(indices_from_pool="kv")}
    assert resolve(stack(pools)).pool("kv").page_bytes == 0
    pools["y"] = PoolConfig(indices_from_pool="kv")
    assert "Only an anchor" in problems(stack(pools))["pools.y.buffers"]


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (plain(hit_policy=TRAILING), "trailing_pages needs it"),
        (plain(window_tokens="window"), "keeps all_pages has no window"),
        (state(window_tokens=1), "keeps one state has no window"),
        (plain(hit_policy=TRAILING, window_tokens="windo"), "Did you mean 'window'"),
        (plain(hit_policy=TRAILING, window_tokens=0), "must be at least 1"),
    ],
)
def test_a_window_belongs_to_trailing_pages_and_only_to_those(pool, words):
    found = problems(stack({"kv": heads(), "x": pool}))
    assert words in found["pools.x.window_tokens"]


def test_a_page_must_be_whole_rows_and_the_error_names_the_nearest_sizes():
    pools = {
        "kv": heads(),
        "c": plain(tokens_per_row="window * 0 + 128", indices_from_pool="kv"),
        "p": plain(page_multiple=96, unit=Unit.page, indices_from_pool="kv"),
    }
    text = problems(stack(pools, page_size=400))["page_size"]
    assert "400 is no multiple of 128 (pools.c.tokens_per_row), 96 (pools.p.page_multiple)" in text
    assert "384 or 768" in text
    spec = resolve(stack(pools, page_size=384))
    assert (spec.pool("c").rows_per_page, spec.pool("p").rows_per_page) == (3, 1)


def test_every_mistake_is_reported_at_once_with_its_key():
    pools = {
        "kv": PoolConfig(
            layers=[{"every": 0}],
            buffers={"k": buffer("heds", 0, dtype="bf16"), "v": buffer()},
        ),
        "x": PoolConfig(
            buffers={
                "y": buffer("heads", split=SplitConfig(parts=[3, 4])),
                "z": buffer("heads", dtype="fp8"),
            },
            indices_from_pool="kw",
        ),
    }
    found = problems(stack(pools, anchor="kx", page_size=64))
    assert set(found) == {
        "anchor",
        "pools.kv.layers",
        "pools.kv.buffers.k.shape",
        "pools.kv.buffers.k.dtype",
        "pools.kv.buffers.v.shape",
        "pools.x.buffers.y.split.parts",
        "pools.x.buffers.z.dtype",
        "pools.x.indices_from_pool",
    }


def test_wrong_settings_are_reported_at_once():
    parallel = ParallelConfig(tp=RankConfig(2, 2), pp=RankConfig(0, 9))
    settings = {"page_size": 0, "checkpoint_tokens": 0, "layers_per_pool": 0}
    found = problems(stack({}, parallel=parallel, **settings))
    assert set(found) == {"pools", "parallel.tp.rank", "parallel.pp.size", *settings}
    assert "num_layers" in problems(stack({"kv": heads()}, num_layers="num_layer"))


def test_layers_are_judged_with_pools_in_any_order_and_circles_are_refused():
    pools = {"s": state(layers=[{"complement_of": "kv"}]), "kv": heads(layers=[{"every": 4}])}
    assert resolve(stack(pools)).pool("s").layers == (1, 2, 3, 5, 6, 7)
    pools["kv"] = heads(layers=[{"complement_of": "s"}])
    assert "layers of" in problems(stack(pools))["pools.s.layers"]
    pools["kv"] = heads(layers=[{"complement_of": "t"}])
    assert "no pool 't'" in problems(stack(pools))["pools.kv.layers"]


def test_a_partition_covers_every_layer_once():
    pools = {"kv": heads(layers=[{"indices": [0, 1]}]), "s": state(layers=[{"indices": [1, 3]}])}
    config = stack(pools, num_layers=4, check=CheckConfig(["kv", "s"]))
    assert "layers [1] twice, [2] not" in problems(config)["check.partition"]
    config.check = CheckConfig(["kv", "t"])
    assert "no pool 't'" in problems(config)["check.partition"]


def test_layers_per_pool_keeps_the_first_of_every_pool():
    shared = [{"indices": [0, 3], "shared": True}]
    pools = {"kv": heads(), "x": plain(layers=shared, indices_from_pool="kv"), "s": state()}
    pools["s"].layers = [{"every": 2, "offset": 1}]
    spec = resolve(stack(pools, layers_per_pool=2))
    assert [pool.layers for pool in spec.pools] == [(0, 1), (0, 3), (1, 3)]
    assert spec.pool("x").producers == {1: 0}


def test_a_sharing_rule_asks_only_the_layers_of_its_source():
    shared = [{"indices": [0, 1, 4, 5], "shared": True}]
    pools = {"kv": heads(layers=[{"every": 2}]), "x": plain(layers=shared, indices_from_pool="kv")}
    pool = resolve(stack(pools)).pool("x")
    assert (pool.layers, pool.producers) == ((0, 4), {2: 0, 6: 4})
    pools["x"].layers = [{"indices": [2, 4], "shared": True}]
    assert "layer 0 uses the rows" in problems(stack(pools))["pools.x.layers"]


def test_draft_pools_are_kept_apart_until_drafting_is_on():
    pools = {"kv": heads(), "d": plain(layers="draft", indices_from_pool="kv")}
    off = resolve(stack(pools, num_draft_layers=2))
    assert [p.name for p in off.pools] == ["kv"]
    assert [(p.name, p.layers, p.draft) for p in off.draft_pools] == [("d", (8, 9), True)]
    on = resolve(stack(pools, num_draft_layers=2, draft=True))
    assert ([p.name for p in on.pools], on.draft_pools) == (["kv", "d"], ())
    assert (
        resolve(stack(pools, draft=True)).pools == resolve(stack(pools)).pools
    )  # none to draft with


def test_stages_are_contiguous_and_draft_layers_are_on_the_last():
    assert [stage_layers(8, rank, 3) for rank in range(3)] == [(0, 3), (3, 6), (6, 8)]
    pools = {
        "kv": heads(layers=[{"indices": [7]}]),
        "s": state(layers=[{"complement_of": "kv"}]),
        "d": plain(layers="draft", indices_from_pool="kv"),
    }
    specs = ranks(stack(pools, num_draft_layers=1, draft=True), 1, 2)
    owned = {stage: [pool.layers for pool in specs[0, stage].pools] for stage in (0, 1)}
    assert owned == {0: [(), (0, 1, 2, 3), ()], 1: [(7,), (4, 5, 6), (8,)]}
    assert specs[0, 0].pool("kv").all_layers == (7,)
    assert specs[0, 0].pool("kv").page_bytes == 0


@pytest.mark.parametrize(
    ("size", "shards"),
    [
        (1, ["h0-7of8"]),
        (2, ["h0-3of8", "h4-7of8"]),
        (8, [f"h{i}-{i}of8" for i in range(8)]),
        (16, [f"h{i // 2}-{i // 2}of8" for i in range(16)]),
    ],
)
def test_heads_are_shared_out_and_replicated_where_there_are_fewer_than_ranks(size, shards):
    specs = ranks(stack({"kv": heads()}), size, 1)
    assert [spec.pool("kv").shard for spec in specs.values()] == shards


def test_a_number_of_ranks_that_cannot_share_equally_names_legal_ones():
    text = problems(stack({"kv": heads()}, parallel=tp(0, 3)))["pools.kv.buffers.k.split"]
    assert "8 units, which 3 ranks cannot share equally" in text
    assert "Legal tp sizes: 1, 2, 4, 8" in text


def test_parts_are_cut_each_by_itself_in_their_own_units():
    split = SplitConfig(parts=[32, 8], unit_size=[4, 8])
    pools = {"s": PoolConfig(unit=Unit.state, buffers={"c": buffer(40, 3, split=split)})}
    specs = list(ranks(stack(pools, anchor=None), 4, 1).values())
    cuts = [spec.pool("s").buffers[0].split.unit_ranges for spec in specs]
    assert cuts == [((2 * i, 2 * i + 2), (0, 1)) for i in range(4)]
    assert {spec.pool("s").buffers[0].shape for spec in specs} == {(16, 3)}
    assert [spec.pool("s").shard for spec in specs] == [f"s{i}of4" for i in range(4)]


def test_ranks_whose_every_part_is_equal_use_one_share():
    split = SplitConfig(parts=[2, 1])
    pools = {"s": PoolConfig(unit=Unit.state, buffers={"c": buffer(3, split=split)})}
    specs = list(ranks(stack(pools, anchor=None), 4, 1).values())
    assert [spec.pool("s").shard for spec in specs] == ["s0of2", "s0of2", "s1of2", "s1of2"]
    assert specs[0].pool("s").shard_class == "rank"


@pytest.mark.parametrize(
    ("split", "key"),
    [
        (SplitConfig(axis=2), "split.axis"),
        (SplitConfig(axis=-1), "split.axis"),
        (SplitConfig(parts=[4, 3]), "split.parts"),
        (SplitConfig(parts=["nothing"]), "split"),
        (SplitConfig(unit_size=3), "split.unit_size"),
        (SplitConfig(parts=[4, 4], unit_size=[1, 2, 1]), "split.unit_size"),
    ],
)
def test_a_split_that_does_not_fit_its_shape_names_its_key(split, key):
    pools = {"kv": PoolConfig(buffers={"k": buffer("heads", 16, split=split)})}
    assert f"pools.kv.buffers.k.{key}" in problems(stack(pools))


def test_unequal_heads_within_a_pool_are_named_by_rank():
    pools = {
        "kv": PoolConfig(
            buffers={"k": buffer(8, 2, split=SplitConfig()), "v": buffer(4, 2, split=SplitConfig())}
        )
    }
    specs = list(ranks(stack(pools), 2, 1).values())
    assert [spec.pool("kv").shard for spec in specs] == ["s0of2", "s1of2"]
