"""Restorable lengths against brute force, and what went wrong elsewhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.boundary import Requirement, longest, restorable_lengths, shortened_by


def need(name, present, window_pages=None):
    return Requirement(name, np.array(present, dtype=np.bool_), window_pages)


def pages(num_pages, *present):
    """Presence of these pages; a pair is a range, its end included."""
    flags = [False] * num_pages
    for one in present:
        first, last = one if isinstance(one, tuple) else (one, one)
        flags[first : last + 1] = [True] * (last + 1 - first)
    return flags


def holds(present, window_pages, length):
    first = 0 if window_pages is None else max(length - window_pages, 0)
    return all(present[first:length])


@st.composite
def requirements(draw):
    num_pages = draw(st.integers(0, 24))
    flags = st.lists(st.booleans(), min_size=num_pages, max_size=num_pages)
    # Mostly present, so that long prefixes happen
    likely = st.lists(st.integers(0, 9).map(bool), min_size=num_pages, max_size=num_pages)
    window = st.none() | st.integers(1, 30)
    one = st.tuples(flags | likely, window)
    return num_pages, draw(st.lists(one, min_size=1, max_size=4))


@given(requirements())
@settings(max_examples=400, deadline=None)
def test_a_length_is_restorable_where_every_requirement_holds_at_that_length(case):
    num_pages, made = case
    needs = [need(str(index), *one) for index, one in enumerate(made)]
    found = restorable_lengths(needs, num_pages)
    expected = [all(holds(*one, n) for one in made) for n in range(num_pages + 1)]
    assert found.tolist() == expected
    assert expected[0]
    for limit in [None, *range(num_pages + 3)]:
        allowed = [n for n, ok in enumerate(expected) if ok and (limit is None or n <= limit)]
        assert longest(found, limit) == allowed[-1]


@given(requirements())
@settings(max_examples=300, deadline=None)
def test_who_shortened_a_prefix_does_not_hold_where_the_first_one_reaches(case):
    num_pages, made = case
    needs = [need(str(index), *one) for index, one in enumerate(made)]
    boundary = longest(restorable_lengths(needs, num_pages))
    reach = max(n for n in range(num_pages + 1) if holds(*made[0], n))
    blamed = shortened_by(needs, boundary)
    if reach == boundary:
        assert blamed is None
    else:
        assert not holds(*made[int(blamed)], reach)


def test_without_requirements_every_length_is_restorable_and_nobody_is_to_blame():
    assert restorable_lengths([], 3).all()
    assert shortened_by([], 0) is None


def test_states_that_outlive_their_pages_are_ignored():
    needs = [need("kv", pages(16, (0, 7))), need("linear", pages(16, 3, 15), 1)]
    lengths = restorable_lengths(needs, 16)
    assert np.flatnonzero(lengths).tolist() == [0, 4]
    assert shortened_by(needs, 4) == "linear"


def test_a_window_is_asked_again_at_the_length_that_another_pool_allows():
    window = pages(16, (12, 15))
    kv, index = need("kv", pages(16, (0, 15))), need("index", pages(16, (0, 13)))
    needs = [kv, index, need("window", window, 4)]
    assert longest(restorable_lengths(needs, 16)) == 0  # 14 would need the window's pages 10-13
    earlier = need("window", pages(16, (4, 7), (12, 15)), 4)
    assert longest(restorable_lengths([kv, index, earlier], 16)) == 8
    assert longest(restorable_lengths([kv, need("window", window, 4)], 16)) == 16


@pytest.mark.parametrize(("states", "length"), [((), 0), ((15,), 16)])
def test_pages_alone_restore_nothing_where_a_state_is_required(states, length):
    kv = need("kv", pages(16, (0, 15)))
    state = need("linear", pages(16, *states), 1)
    assert longest(restorable_lengths([kv, state], 16)) == length
    assert longest(restorable_lengths([kv], 16)) == 16


def test_a_window_longer_than_the_prompt_needs_all_of_it():
    assert longest(restorable_lengths([need("window", pages(4, (1, 3)), 9)], 4)) == 0
    assert longest(restorable_lengths([need("window", pages(4, (0, 3)), 9)], 4)) == 4
