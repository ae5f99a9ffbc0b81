"""Keys and namespaces: what changes the meaning of bytes changes them, and nothing else does."""

from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.arena import make_arenas
from composer.errors import ConfigError
from composer.keys import ObjectKey, build_key, build_keys, namespace_digest, object_name, parse_key
from composer.schema import LayoutConfig
from composer.spec import ModelSpec
from composer.split import unit_ranges
from composer.stack_plan import plan_stack
from tests.model_configs import ranks, stack_config
from tests.pools import LAYOUTS, buffer, follows, model, pool, with_axes

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "/", "a/b", "../..", "%2F", "k@v_k", "-", "模型", "a b", "\n", "k:v,w", "h0-3of8.l0-30"]
)
HASHES = st.binary(min_size=32, max_size=32)


@given(NAMES, NAMES, NAMES, NAMES, HASHES)
def test_parsing_gives_back_what_was_built(namespace, scope, name, shard, page_hash):
    key = ObjectKey(namespace, scope, name, shard, page_hash)
    text = build_key(key)
    assert parse_key(text) == key
    assert text.count("/") == 4
    assert text.isascii()


@given(NAMES, NAMES, st.lists(HASHES, max_size=5))
def test_many_keys_are_built_as_each_one_is(namespace, scope, hashes):
    keys = [ObjectKey(namespace, scope, "kv", "r.l0-1", one) for one in hashes]
    prefix = ObjectKey(namespace, scope, "kv", "r.l0-1", b"").prefix
    assert build_keys(prefix, hashes) == [build_key(key) for key in keys]


@given(NAMES, st.lists(NAMES, max_size=3), NAMES, st.lists(NAMES, max_size=3))
def test_object_names_are_equal_only_for_equal_spaces_and_pools(space, pools, space2, pools2):
    same = (space, pools) == (space2, pools2)
    if [] not in (pools, pools2) or pools == pools2:
        empty = [""] in (pools, pools2) and [] in (pools, pools2)
        assert (object_name(space, pools) == object_name(space2, pools2)) == same or empty


def test_a_leading_zero_of_a_hash_stays():
    key = ObjectKey("n", "-", "kv", "r", bytes(31) + b"\1")
    assert build_key(key) == "n/-/kv/r/" + "00" * 31 + "01"
    assert parse_key(build_key(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b/c/d",
        "n/-/kv/r/" + "0" * 63,
        "n/-/kv/r/" + "g" * 64,
        "n/-/kv/r/" + "AB" * 32,
        "n/-/kv/r/  " + "ab" * 31,
        "n/-/kv/r/x/" + "ab" * 32,
        "n/-/k%76/r/" + "ab" * 32,
        "n/-/k v/r/" + "ab" * 32,
        "n/-/%ff/r/" + "ab" * 32,
        "n/-/%2f/r/" + "ab" * 32,
    ],
)
def test_what_no_build_writes_is_no_key(text):
    with pytest.raises(ValueError, match=r"storage key|hexadecimal"):
        parse_key(text)


def test_a_namespace_keeps_128_bits_and_the_order_of_a_mapping_does_not_count():
    assert len(namespace_digest({"a": 1, "b": (1, 2)})) == 32
    assert namespace_digest({"a": 1, "b": (1, 2)}) == namespace_digest({"b": [1, 2], "a": 1})
    assert namespace_digest({"a": 1}) != namespace_digest({"a": "1"})


@cache
def plan(*overrides, preset="deepseek_v3_2"):
    return plan_stack(preset, list(overrides))[1]


def namespaces(*overrides, preset="deepseek_v3_2"):
    return {arena.name: arena.namespace for arena in plan(*overrides, preset=preset).arenas}


@pytest.mark.parametrize(
    "override",
    [
        "model.name=other",
        "model.revision=r2",
        "model.quantization=fp8",
        "deployment=dep1",
        "engine=transformers",
        "engine_version=2",
        "page_size=128",
        "dtypes.kv_dtype=float16",
        "config.kv_lora_rank=448",
        "config.num_hidden_layers=60",
        "layers_per_pool=2",
        "layout=page_first",
        "layout.axes=[page,layer,buffer,token,head]",
        "pools.indexer.required=false",
        "pools.kv.buffers.latent.shape=[576]",
    ],
)
def test_what_changes_the_meaning_of_bytes_changes_the_namespace(override):
    assert set(namespaces(override).values()).isdisjoint(namespaces().values())


def test_fields_that_a_shape_reads_count_even_where_their_sum_is_equal():
    swapped = namespaces("config.kv_lora_rank=448", "config.qk_rope_head_dim=128")
    assert plan("config.kv_lora_rank=448", "config.qk_rope_head_dim=128").host_bytes > 0
    assert swapped["kv"] != namespaces()["kv"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("host.memory=4GiB", "host.reserve=1GiB", "device.memory=2GiB"),
        ("parallel.tp.size=8", "parallel.tp.rank=3"),
        ("parallel.pp.size=4", "parallel.pp.rank=2"),
        ("layout=page_first_direct",),
        ("layout=layer_first",),
        ("checkpoint_tokens=2048", "policy.renew_pages=1"),
        ("storage.verify=identity",),
        ("backend=file", "backend.path=/tmp/x"),
        ("pools.kv.weight=2", "pools.indexer.exclude={x: scratch}"),
        ("+config.unread_field=7",),
    ],
)
def test_what_does_not_change_the_meaning_leaves_the_namespace(overrides):
    assert namespaces(*overrides) == namespaces()


@pytest.mark.parametrize("preset", ["llama3_1_8b", "qwen3_next_80b", "gemma3_27b"])
@pytest.mark.parametrize("override", ["parallel.tp.size=2", "parallel.pp.size=2"])
def test_namespaces_are_the_same_on_every_rank(preset, override):
    assert namespaces(override, preset=preset) == namespaces(preset=preset)


def test_two_revisions_have_no_key_in_common_and_going_back_finds_the_first_again():
    first, second = namespaces("model.revision=r1"), namespaces("model.revision=r2")
    assert set(first.values()).isdisjoint(second.values())
    assert namespaces("model.revision=r1", "host.memory=3GiB") == first


def test_a_pools_name_unit_dtype_shape_and_row_length_each_count():
    def digest(*pools):
        return make_arenas(model(*pools))[0].namespace

    base = pool("kv", buffer("k", 4, 4), buffer("v", 4, 4))
    others = [
        pool("kv", buffer("v", 4, 4), buffer("k", 4, 4)),
        pool("kv", buffer("k", 4, 4)),
        pool("kv", buffer("k", 2, 8), buffer("v", 2, 8)),
        pool("kv", buffer("k", 4, 4, dtype="float16"), buffer("v", 4, 4)),
        pool("kv", buffer("k", 4, 4, cut=True), buffer("v", 4, 4, cut=True)),
        pool("kv", buffer("k", 4, 4), buffer("v", 4, 4), layers=(0, 1)),
        replace(base, tokens_per_row=2),
        pool("other", buffer("k", 4, 4), buffer("v", 4, 4)),
    ]
    found = [digest(base), *(digest(other) for other in others)]
    assert len(set(found)) == len(found)


def test_layouts_that_differ_in_the_place_of_page_share_a_namespace():
    spec = model(
        pool("kv", buffer("k", 2, 4, cut=True), buffer("v", 2, 4, cut=True)),
        follows("kv", "window", buffer("x", 2, 4, cut=True)),
    )
    found = defaultdict(set)
    for name, axes in LAYOUTS.items():
        found[make_arenas(with_axes(spec, axes))[0].namespace].add(name)
    assert sorted(map(sorted, found.values())) == [
        ["layer_first", "page_envelope", "page_first_direct"],
        ["page_first"],
        ["page_head"],
    ]


SIZES = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 3), (2, 2)]
FAMILIES = [
    "deepseek_v3_2", "deepseek_v4_flash", "falcon_h1_7b", "gemma3_27b", "glm_5_2", "jamba_v0_1",
    "kimi_linear_48b", "lfm2_1_2b", "llama3_1_8b", "mamba2_2_7b", "minimax_m3", "minimax_text_01",
    "nemotron_nano_9b_v2", "qwen3_next_80b", "zamba2_7b",
]  # fmt: skip


def contents(spec: ModelSpec, tp_rank: int, tp_size: int):
    """(namespace, object, shard) -> what the object of this rank holds, from the split alone."""
    found = {}
    for arena in make_arenas(spec):
        held = []
        for one in arena.pools:
            for part in one.buffers:
                units = None
                if part.split is not None:
                    counts = [
                        length // unit
                        for length, unit in zip(part.split.parts, part.split.unit_size, strict=True)
                    ]
                    units = tuple(counts), unit_ranges(counts, tp_rank, tp_size)
                    assert units[1] == part.split.unit_ranges
                held.append((one.name, part.name, one.layers, units))
        found[arena.namespace, arena.name, arena.shard] = (tuple(held), arena.payload_bytes)
    return found


@pytest.mark.parametrize("preset", FAMILIES)
def test_equal_keys_mean_equal_bytes_and_equal_bytes_equal_keys_over_all_ranks(preset):
    by_key, by_content = {}, {}
    config = stack_config(preset)
    config.draft = True
    config.layout = LayoutConfig(list(LAYOUTS["page_envelope"]))
    for tp, pp in SIZES:
        try:
            specs = ranks(config, tp, pp)
        except ConfigError as error:
            if "ranks cannot share" not in str(error):
                raise
            continue
        for (rank, _), spec in specs.items():
            for (namespace, name, shard), held in contents(spec, rank, tp).items():
                assert by_key.setdefault((namespace, name, shard), held) == held
                assert by_content.setdefault((namespace, name, held), shard) == shard
    assert by_key


def test_two_pipeline_stages_have_no_key_in_common():
    keys = [
        {(arena.namespace, arena.name, arena.shard) for arena in plan(*stage).arenas}
        for stage in (
            ("parallel.pp.size=2", "parallel.pp.rank=0"),
            ("parallel.pp.size=2", "parallel.pp.rank=1"),
        )
    ]
    assert keys[0].isdisjoint(keys[1])
    assert all(keys)
