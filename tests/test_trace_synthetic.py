"""Requests that are made up: always the same ones, and shared as configured."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import ConfigError
from composer.simulation.prompts import Ideal, Naming
from composer.traces import read_requests

SIZE = 64


def make(**params):
    return read_requests({"format": "synthetic", **params})[0]


def digest(requests):
    return hashlib.sha256(repr(requests).encode()).hexdigest()[:16]


def ideal_hits(requests):
    naming, ideal = Naming(SIZE), Ideal()
    for one in requests:
        ideal.add(naming.prompt(one.hash_ids, one.num_tokens, one.block_tokens))
    return ideal.full


def test_the_same_settings_give_the_same_requests_everywhere():
    found = make(num_sessions=40)
    assert (len(found), digest(found)) == (368, "9b6f0c7f44cc5e28")
    assert digest(make(num_sessions=40, seed=1)) != digest(found)


def test_how_many_run_at_a_time_changes_the_order_alone():
    def lengths(**params):
        return Counter(one.num_tokens for one in make(**params))

    assert lengths(num_active=1) == lengths(num_active=100)
    assert make(num_active=1) != make(num_active=100)


def test_sessions_share_their_system_prompt_and_nothing_else():
    fixed = {"turns": [1, 1], "user_tokens": [70, 70], "agent_share": 0.0, "num_active": 1}
    found = make(num_sessions=30, num_system_prompts=3, system_tokens=[640, 640], **fixed)

    heads = {one.hash_ids[:10] for one in found}
    rests = [block for one in found for block in one.hash_ids[10:]]
    assert len(heads) == 3
    assert len({block for head in heads for block in head}) == 30
    assert len(set(rests)) == len(rests) == 30 * 2
    hits = ideal_hits(found)
    assert (hits.num_hits, hits.num_pages) == ((30 - 3) * 10, 30 * 11)


def test_without_system_prompts_sessions_share_nothing():
    found = make(num_sessions=20, num_system_prompts=0, turns=[1, 1], agent_share=0.0)
    blocks = [block for one in found for block in one.hash_ids]
    assert len(set(blocks)) == len(blocks)


def test_a_turn_goes_on_from_the_one_before():
    found = make(
        num_sessions=1, agent_share=0.0, num_system_prompts=0, turns=[5, 5],
        user_tokens=[100, 100], reply_tokens=[30, 30],
    )  # fmt: skip

    assert [one.num_tokens for one in found] == [100, 230, 360, 490, 620]
    for before, after in pairwise(found):
        full = before.num_tokens // SIZE
        assert after.hash_ids[:full] == before.hash_ids[:full]
    hits = ideal_hits(found)
    assert hits.num_hits == sum(one.num_tokens // SIZE for one in found[:-1])


def test_a_sub_agent_goes_on_from_where_its_agent_is_and_the_agent_from_there_too():
    found = make(
        num_sessions=1, agent_share=1.0, num_system_prompts=0, steps=[3, 3], branch_share=1.0,
        user_tokens=[64, 64], reply_tokens=[64, 64], tool_tokens=[64, 64],
    )  # fmt: skip

    agent, children = found[::4], [found[at + 1 : at + 4] for at in (0, 4, 8)]
    assert [one.num_tokens for one in agent] == [64, 192, 320]
    for parent, child in zip(agent, children, strict=True):
        known = len(parent.hash_ids) + 1  # its prompt, and what it answered
        assert [len(one.hash_ids) for one in child] == [known + 1, known + 3, known + 5]
        assert all(one.hash_ids[:known] == child[0].hash_ids[:known] for one in child)
        assert child[0].hash_ids[: known - 1] == parent.hash_ids
    for (before, after), child in zip(pairwise(agent), children, strict=False):
        known = len(before.hash_ids) + 1
        assert after.hash_ids[:known] == child[0].hash_ids[:known]
        assert not set(after.hash_ids[known:]) & {block for one in child for block in one.hash_ids}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_lengths_and_numbers_stay_within_what_is_set(data):
    def bounds(least, most):
        low = data.draw(st.integers(least, most))
        return [low, data.draw(st.integers(low, most))]

    params = {
        "seed": data.draw(st.integers(0, 1000)),
        "num_sessions": data.draw(st.integers(1, 12)),
        "num_active": data.draw(st.integers(1, 20)),
        "agent_share": 0.0,
        "num_system_prompts": data.draw(st.integers(0, 3)),
        "system_tokens": bounds(0, 300),
        "turns": bounds(1, 4),
        "user_tokens": bounds(1, 300),
        "reply_tokens": bounds(0, 300),
        "block_tokens": data.draw(st.integers(1, 100)),
    }
    found = make(**params)
    assert found == make(**params)

    sessions, (low, high) = params["num_sessions"], params["turns"]
    assert sessions * low <= len(found) <= sessions * high
    longest = params["system_tokens"][1] + high * (
        params["user_tokens"][1] + params["reply_tokens"][1]
    )
    for one in found:
        assert params["user_tokens"][0] <= one.num_tokens <= longest
        assert one.block_tokens == params["block_tokens"]
        assert len(one.hash_ids) == -(-one.num_tokens // one.block_tokens)
        assert len(set(one.hash_ids)) == len(one.hash_ids)


def test_shares_are_about_what_is_set():
    params = {"num_sessions": 2000, "turns": [1, 1], "steps": [2, 2], "num_system_prompts": 0}
    assert 0.22 < len(make(**params, agent_share=0.25, branch_share=0.0)) / 2000 - 1 < 0.28
    branched = len(make(**params, agent_share=1.0, branch_share=0.5)) / 2000
    assert 3.9 < branched < 4.1  # 2 steps, each with half a chance of 2 more


def test_settings_that_cannot_be_are_told_at_once():
    wrong = {
        "num_sessions": 0, "num_active": -1, "num_system_prompts": -2, "agent_share": 1.5,
        "branch_share": -0.1, "turns": [3], "steps": [4, 2], "user_tokens": [0, 5],
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        make(**wrong)
    assert {problem.key for problem in caught.value.problems} == {f"trace.{key}" for key in wrong}
