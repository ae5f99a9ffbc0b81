"""Layouts against a model that enumerates every cell."""

from collections import defaultdict
from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import ConfigError
from composer.layout import AXES, Block, Section, check_axes, check_blocks, object_order
from tests.pools import LAYOUTS

ORDERS = list(permutations(AXES))
SOME = settings(max_examples=6, deadline=None)


@st.composite
def blocks(draw, alike=None):
    """One to four buffers; ``alike``: they have equal tokens, heads and items."""
    alike = draw(st.booleans()) if alike is None else alike
    extents = st.tuples(st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 2]))
    shared = draw(extents)
    made = []
    for index in range(draw(st.integers(1, 4))):
        tokens, heads, item_bytes = shared if alike else draw(extents)
        layers = draw(st.sets(st.integers(0, 4), min_size=0 if made else 1))
        cell_bytes = item_bytes * draw(st.integers(1, 5))
        made.append(
            Block("pool", f"b{index}", tuple(sorted(layers)), tokens, heads, cell_bytes, item_bytes)
        )
    return made


def cells(made, num_pages):
    """Every cell, as its place on each axis."""
    for index, block in enumerate(made):
        for layer in block.layers:
            for page in range(num_pages):
                for token in range(block.tokens):
                    for head in range(block.heads):
                        place = (index, layer, page, token, head)
                        yield dict(zip(AXES, place, strict=True))


def by_order(axes):
    return lambda cell: [cell[axis] for axis in axes]


def addresses(axes, made, num_pages, extra):
    """Cell -> its first byte, counted one cell after another."""
    found, end = {}, 0
    for cell in sorted(cells(made, num_pages), key=by_order(axes)):
        found[tuple(cell.values())] = end
        end += made[cell["buffer"]].cell_bytes
    if axes[0] == "page":  # records: each page starts at a multiple of its own
        payload = sum(block.page_bytes for block in made)
        record = payload + -payload % 64 + extra
        for cell in cells(made, num_pages):
            found[tuple(cell.values())] += cell["page"] * (record - payload)
    return found


def conflict(axes, made):
    left = axes[: axes.index("buffer")]
    return ("token" in left and len({(b.tokens, b.item_bytes) for b in made}) > 1) or (
        "head" in left and len({(b.heads, b.item_bytes) for b in made}) > 1
    )


def legal(axes, made):
    """Whether the blocks can interleave; refusals are checked on the way."""
    if not conflict(axes, made):
        check_blocks(axes, made)
        return True
    with pytest.raises(ConfigError) as error:
        check_blocks(axes, made)
    assert str(error.value).count("pool.b") == 2
    return False


@pytest.mark.parametrize("axes", ORDERS, ids="-".join)
@SOME
@given(made=blocks(), num_pages=st.integers(1, 4), extra=st.sampled_from([0, 64]))
def test_offsets_and_strides_are_the_lexicographic_order_of_the_cells(axes, made, num_pages, extra):
    if not legal(axes, made):
        return
    section = Section(axes, made, num_pages, extra)
    expected = addresses(axes, made, num_pages, extra)
    for cell in cells(made, num_pages):
        place = section.placements[cell["buffer"]]
        row = made[cell["buffer"]].layers.index(cell["layer"])
        address = (
            place.offset[row]
            + cell["page"] * place.page_stride[row]
            + cell["token"] * place.token_stride[row]
            + cell["head"] * place.head_stride[row]
        )
        assert address == expected[tuple(cell.values())], cell


@pytest.mark.parametrize("axes", ORDERS, ids="-".join)
@SOME
@given(made=blocks(), num_pages=st.integers(2, 4), extra=st.sampled_from([0, 64]))
def test_runs_are_a_pages_bytes_in_object_order_and_no_more_than_needed(
    axes, made, num_pages, extra
):
    if not legal(axes, made):
        return
    section = Section(axes, made, num_pages, extra)
    expected = addresses(axes, made, num_pages, extra)
    object_axes = [axis for axis in axes if axis != "page"]
    by_page = defaultdict(list)
    for cell in sorted(cells(made, num_pages), key=by_order(object_axes)):
        first = expected[tuple(cell.values())]
        by_page[cell["page"]] += range(first, first + made[cell["buffer"]].cell_bytes)
    runs = section.runs
    covered = []
    for page in range(num_pages):
        found = []
        for first, stride, size in zip(runs.offset, runs.stride, runs.num_bytes, strict=True):
            found += range(first + page * stride, first + page * stride + size)
        assert found == by_page[page]
        covered += found
    assert len(set(covered)) == len(covered) == num_pages * section.payload_bytes
    assert all(0 <= byte < section.total_bytes for byte in covered)
    left = axes[: axes.index("page")]
    assert len(runs) == len({tuple(cell[a] for a in left) for cell in cells(made, num_pages)})


@pytest.mark.parametrize("axes", ORDERS, ids="-".join)
@pytest.mark.parametrize("extents", [(3, 4, 2), (1, 4, 2), (3, 1, 1)])
def test_a_buffer_has_as_many_runs_as_its_extents_left_of_page_multiply_to(axes, extents):
    layers, tokens, heads = extents
    block = Block("kv", "k", tuple(range(layers)), tokens, heads, 6, 2)
    extent = {"buffer": 1, "layer": layers, "token": tokens, "head": heads}
    left = axes[: axes.index("page")]
    assert len(Section(axes, [block], 5).runs) == prod(extent[axis] for axis in left)


@given(made=blocks(alike=True), num_pages=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_page_by_page_runs_never_depend_on_how_many_pages_there_are_in_a_record(made, num_pages):
    section = Section(LAYOUTS["page_envelope"], made, num_pages, 64)
    one = Section(LAYOUTS["page_envelope"], made, 1, 64)
    assert len(section.runs) == 1
    assert np.array_equal(section.runs.offset, one.runs.offset)
    assert section.total_bytes == num_pages * one.total_bytes
    assert one.total_bytes % 64 == 0


@pytest.mark.parametrize("axes", ORDERS, ids="-".join)
def test_a_section_without_layers_on_this_stage_has_no_runs(axes):
    section = Section(axes, [Block("kv", "k", (), 4, 2, 6, 2)], 3)
    assert (len(section.runs), section.payload_bytes, section.total_bytes) == (0, 0, 0)


@pytest.mark.parametrize("axis", ["token", "head"])
def test_buffers_that_cannot_interleave_are_both_named(axis):
    axes = (axis, *(other for other in AXES if other != axis))
    made = [Block("kv", "k", (0,), 4, 2, 8, 2), Block("index", "key", (0,), 1, 1, 5, 1)]
    with pytest.raises(ConfigError) as error:
        check_blocks(axes, made)
    text = str(error.value)
    assert f"'{axis}' stands left of 'buffer'" in text
    assert "kv.k" in text
    assert "index.key" in text


def test_the_third_buffer_is_compared_too():
    alike = [Block("kv", name, (0,), 4, 2, 8, 2) for name in "kv"]
    axes = ("token", "buffer", "layer", "page", "head")
    check_blocks(axes, alike)
    with pytest.raises(ConfigError, match=r"kv\.k .* index\.key"):
        check_blocks(axes, [*alike, Block("index", "key", (0,), 3, 2, 8, 2)])


@pytest.mark.parametrize(
    "axes",
    [
        ["page", "buffer", "layer", "token"],
        ["page", "page", "layer", "token", "head"],
        ["page", "buffer", "layer", "token", "head", "head"],
        ["page", "buffer", "layer", "token", "heads"],
        [],
    ],
)
def test_what_is_no_order_of_the_five_axes_is_refused_with_its_key(axes):
    with pytest.raises(ConfigError, match=r"pools\.kv\.layout: .*exactly once"):
        check_axes("pools.kv.layout", axes)


def test_only_the_place_of_page_is_left_out_of_an_objects_order():
    made = [Block("kv", name, (0, 1), 4, 2, 8, 2) for name in "kv"]
    orders = {name: object_order(axes, made) for name, axes in LAYOUTS.items()}
    assert orders["page_envelope"] == ("buffer", "layer", "token", "head")
    assert orders["page_envelope"] == orders["page_first_direct"] == orders["layer_first"]
    assert len({orders[name] for name in ("page_envelope", "page_first", "page_head")}) == 3


@given(axes=st.sampled_from(ORDERS), other=st.sampled_from(ORDERS), made=blocks(alike=True))
@settings(max_examples=300, deadline=None)
def test_equal_object_orders_mean_equal_object_bytes(axes, other, made):
    if object_order(axes, made) != object_order(other, made):
        return

    def content(order):
        without_page = [axis for axis in order if axis != "page"]
        return [
            [cell[axis] for axis in AXES]
            for cell in sorted(cells(made, 1), key=by_order(without_page))
        ]

    assert content(axes) == content(other)
