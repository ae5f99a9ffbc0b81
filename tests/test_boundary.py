"""Restorable lengths against brute force, and what went wrong elsewhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.boundary import (
    Requirement,
    longest,
    longest_restorable,
    restorable_lengths,
    shortened_by,
)
from composer.errors import ConfigError
from tests.engine import DRAFT, FOLLOWER, PAGE, SWA, Engine, config, open_stack, prompt
from tests.faults import Faulty
from tests.test_lookup import forget


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
        assert longest_restorable(needs, num_pages, limit) == allowed[-1]


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
    assert longest_restorable([], 3) == 3
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


def refused(**pools):
    with pytest.raises(ConfigError) as raised:
        config("kv+window", pools=pools)
    return raised.value.problems


def test_an_optional_pool_cannot_make_its_source_keep_more_pages_than_a_hit_needs():
    wide = {**SWA, "indices_from_pool": "swa", "required": False, "window_tokens": 3 * PAGE + 1}
    (problem,) = refused(wide=wide)
    assert problem.key == "pools.wide.window_tokens"
    assert "'swa', which keeps 3 pages of 4" in problem.reason
    assert "at most 12" in problem.fix
    config("kv+window", pools={"wide": {**wide, "window_tokens": 3 * PAGE}})
    config("kv+window", pools={"wide": {**wide, "required": True}})


@pytest.mark.parametrize("word", ["required", "prefix_cacheable"])
def test_where_no_pool_is_required_every_prompt_would_be_a_hit(word):
    (problem,) = refused(kv={word: False}, swa={word: False})
    assert problem.key == "pools"
    assert "every prompt would be a hit" in problem.reason
    config("kv+window", pools={"kv": {word: False}})


# In tokens, multiples of the page and others; None: a model without this one.
WINDOWS = st.sampled_from([None, 1, 3, 4, 4, 5, 8, 8, 10, 12, 12, 15, 30])


@st.composite
def losses(draw):
    """A schema with windows of any length, and which objects of a prompt storage has lost."""
    over: dict = {"draft": draw(st.booleans())}
    pools = {"draft": DRAFT} if over["draft"] else {}
    rules: dict[str, int | None] = {}  # trailing space -> tokens
    for name, layer in (("swa", 0), ("far", 2)):
        if (window := draw(WINDOWS)) is not None:
            pools[name] = {**SWA, "layers": [{"indices": [layer]}], "window_tokens": window}
            rules[name] = window
    if "swa" in rules and (window := draw(WINDOWS)) is not None:
        pools["follower"] = {**FOLLOWER, "window_tokens": window}
        rules["swa"] = max(rules["swa"], window)  # both are in one object
    schema = draw(st.sampled_from(["kv+indexer", "kv+state", "kv+draft", "kv+extra"]))
    num_pages = draw(st.integers(1, 9))
    fates = draw(st.lists(st.integers(0, 39), min_size=60, max_size=60))
    return schema, {**over, "pools": pools}, rules, num_pages, fates


def is_restorable(kept, spaces, num_pages):
    """The definition: page by page, pool by pool, token by token."""
    for rule, pools in spaces:
        for page in range(num_pages):
            tokens = range(page * PAGE, (page + 1) * PAGE)
            if rule == "state":
                needed = page == num_pages - 1
            elif rule is None:
                needed = True
            else:
                needed = any(token >= num_pages * PAGE - rule for token in tokens)
            if needed and not all(kept[pool, page] for pool in pools):
                return False
    return True


@given(losses())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_hit_is_the_longest_prefix_that_the_definition_allows(case):
    schema, over, rules, num_pages, fates = case
    backend = Faulty()
    with open_stack(schema, (16, 16), backend=backend, **over) as stack:
        engine, tokens = Engine(stack), prompt(*range(num_pages))
        engine.serve(tokens, states_at=[PAGE * (page + 1) for page in range(num_pages)])
        assert stack.publish().pages_unsaved == 0
        forget(stack)
        kept_keys = backend.keys()
        hashes = [h.hex() for h in stack.match(tokens).prompt.hashes]
        stored = {(k.split("/")[2], hashes.index(k.split("/")[4])): k for k in kept_keys}
        spaces = [
            (
                "state" if plan.is_state else rules.get(name),
                [arena.name for arena in plan.arenas if arena.required],
            )
            for name, plan in stack.plan.spaces.items()
        ]
        # Of what keeps every page little is lost, so that much depends on windows and states.
        rare = {pool for rule, pools in spaces if rule is None for pool in pools}
        fated = zip(sorted(stored), fates, strict=False)
        lost = [one for one, fate in fated if fate < (1 if one[0] in rare else 12)]
        backend.remove([stored[one] for one in lost])
        kept = {one: one not in lost for one in stored}
        right = max(n for n in range(num_pages + 1) if is_restorable(kept, spaces, n))
        match = stack.match(tokens)
        assert match.num_pages == right
        with stack.restore(match) as lease:
            assert lease.num_pages == right
            engine.verify_lease(match, lease)
            names = {pool for pool, page in lost if page < right}
            optional = {a.name for plan in stack.plan.spaces.values() for a in plan.arenas}
            optional -= {pool for _, pools in spaces for pool in pools}
            assert bool(lease.degraded) == bool(names & optional)
