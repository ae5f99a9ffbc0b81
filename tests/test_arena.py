"""Which pools share an object, and what the object is called."""

from dataclasses import replace

import pytest

from composer.arena import TRAILER_BYTES, head_axis, make_arenas, pool_blocks
from composer.errors import ConfigError
from composer.resolve import resolve
from composer.schema import (
    BufferConfig,
    LayoutConfig,
    ModelConfig,
    PoolConfig,
    SplitConfig,
    StackConfig,
    Unit,
)
from tests.pools import LAYOUTS, buffer, follows, hybrid, model, pool, state


def names(spec):
    return [(arena.space, arena.name, [one.name for one in arena.pools]) for arena in spec]


def test_pools_of_one_space_shard_class_and_need_share_an_object():
    arenas = make_arenas(hybrid())
    assert names(arenas) == [
        ("kv", "kv:index,latent", ["index", "latent"]),
        ("kv", "kv", ["kv"]),
        ("window", "window", ["window"]),
        ("linear", "linear", ["linear"]),
    ]
    assert [arena.shard for arena in arenas] == [
        "r.l0-3",
        "h0-2of3.l1-4",
        "h0-1of2.l0-2",
        "s0of1.l0-2",
    ]
    assert [arena.window_pages for arena in arenas] == [None, None, 2, 1]


def test_an_optional_pool_has_an_object_of_its_own_written_before_its_owners():
    spec = model(
        pool("kv", buffer("x", 8)),
        follows("kv", "index", buffer("key", 4)),
        follows("kv", "draft", buffer("x", 8), required=False),
    )
    arenas = make_arenas(spec)
    assert names(arenas) == [("kv", "kv:draft", ["draft"]), ("kv", "kv", ["kv", "index"])]
    assert [arena.required for arena in arenas] == [False, True]


def test_an_owner_without_buffers_leaves_its_object_to_the_first_pool_that_has_some():
    spec = model(pool("kv"), follows("kv", "a", buffer("x", 8)), follows("kv", "b", buffer("x", 2)))
    assert names(make_arenas(spec)) == [("kv", "kv", ["a", "b"])]


def test_scratch_is_never_stored():
    spec = model(
        pool("kv", buffer("x", 8)), follows("kv", "ring", buffer("x", 2), prefix_cacheable=False)
    )
    assert names(make_arenas(spec)) == [("kv", "kv", ["kv"])]


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_an_object_is_padded_payload_and_a_trailer_in_every_layout(axes):
    spec = model(
        pool("kv", buffer("x", 3, dtype="uint8"), axes=axes),
        follows("kv", "i", buffer("x", 7, dtype="uint8"), layers=(2,), axes=axes),
    )
    (arena,) = make_arenas(spec)
    assert arena.payload_bytes == 3 * 4 * 3 + 4 * 7 == 64
    assert arena.object_bytes == 64 + TRAILER_BYTES
    (arena,) = make_arenas(model(pool("kv", buffer("x", 3, dtype="uint8"), axes=axes)))
    assert (arena.payload_bytes, arena.object_bytes) == (36, 64 + TRAILER_BYTES)
    assert arena.is_record == (axes[0] == "page")


def test_a_pool_with_a_layout_of_its_own_is_a_section_and_the_object_stays_one():
    spec = model(
        pool("kv", buffer("x", 3, dtype="uint8")),
        follows("kv", "i", buffer("x", 7, dtype="uint8"), axes=LAYOUTS["layer_first"]),
        follows("kv", "j", buffer("x", 5, dtype="uint8")),
    )
    (arena,) = make_arenas(spec)
    assert [[one.name for one in section] for section in arena.sections] == [["kv", "j"], ["i"]]
    assert arena.object_bytes == 128 + 128 + TRAILER_BYTES  # 96 and 84 bytes, each padded
    assert not arena.is_record
    together = model(*(replace(one, axes=LAYOUTS["page_envelope"]) for one in spec.pools))
    assert make_arenas(together)[0].namespace != arena.namespace


def test_a_stage_without_layers_stores_no_object_and_leaves_the_others_names():
    kv, index = pool("kv", buffer("x", 8)), pool("index", buffer("x", 8), layers=(1,))
    stage = model(replace(kv, layers=(0,)), replace(index, layers=(), index_space="kv"))
    (arena,) = make_arenas(stage)
    assert (arena.name, arena.shard) == ("kv", "r.l0-0")
    assert [one.name for one in arena.pools] == ["kv", "index"]
    assert make_arenas(model(replace(kv, layers=()), replace(index, layers=()))) == ()


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_a_section_of_its_own_may_have_no_layer_on_this_stage(axes):
    spec = model(
        pool("kv", buffer("x", 8), layers=(0,), all_layers=(0, 1)),
        follows("kv", "i", buffer("x", 8), layers=(), all_layers=(1,), axes=axes),
    )
    (arena,) = make_arenas(spec)
    assert sum(len(section.runs) for section in arena.place(3)) == 1


def test_heads_are_the_cut_axis_of_token_buffers_only():
    heads = buffer("k", 4, 6, cut=True)
    assert head_axis(pool("kv", heads), heads) == 0
    assert head_axis(state("s", heads), heads) is None
    assert head_axis(pool("p", heads, unit=Unit.page), heads) is None
    (block,) = pool_blocks([pool("kv", heads)])
    assert (block.tokens, block.heads, block.cell_bytes) == (4, 4, 12)
    (block,) = pool_blocks([state("s", heads)])
    assert (block.tokens, block.heads, block.cell_bytes) == (1, 1, 48)


def test_an_axis_order_that_cannot_interleave_an_arena_is_refused_with_both_buffers():
    axes = ("token", "page", "buffer", "layer", "head")
    spec = model(
        pool("kv", buffer("x", 8), axes=axes),
        follows("kv", "i", buffer("x", 7, dtype="uint8"), axes=axes),
    )
    with pytest.raises(ConfigError, match=r"kv\.x .* i\.x"):
        make_arenas(spec)[0].place(2)


@pytest.mark.parametrize("unit", Unit)
def test_only_the_first_axis_of_a_token_buffer_can_be_cut(unit):
    cut = BufferConfig([6, 4], "bfloat16", SplitConfig(axis=1))
    pools = {
        "kv": PoolConfig(buffers={"k": BufferConfig([8], "bfloat16")}),
        "other": PoolConfig(unit=unit, buffers={"k": cut}),
    }
    layout = LayoutConfig(list(LAYOUTS["page_head"]))
    config = StackConfig(ModelConfig("m"), pools=pools, anchor="kv", num_layers=2, layout=layout)
    if unit is not Unit.token:
        assert resolve(config).pool("other").buffers[0].split.axis == 1
        return
    with pytest.raises(ConfigError, match=r"pools\.other\.buffers\.k\.split\.axis: axis 1 .*head"):
        resolve(config)
