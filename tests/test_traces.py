"""Traces from files: each format, scaled and limited, and what is broken told with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import ConfigError
from composer.registry import TRACES
from composer.traces import Request, TraceParams, read_requests
from composer.traces.hash_ids import to_line
from composer.traces.request import MAX_ID

PRESETS = sorted((Path(__file__).parents[1] / "conf" / "trace").glob("*.yaml"))
GOOD = '{"input_length": 700, "hash_ids": [1, 2]}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


def read(path, **settings):
    return read_requests({"format": "auto", "path": str(path), **settings})[0]


def read_lines(folder, *lines, **settings):
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read(path, **settings)


def line(length, *hash_ids, **more):
    return json.dumps({"input_length": length, "hash_ids": hash_ids, **more})


@st.composite
def requests(draw):
    size, num_tokens = draw(st.integers(1, 600)), draw(st.integers(0, 2000))
    num_blocks = -(-num_tokens // size)
    ids = draw(st.lists(st.integers(0, MAX_ID), min_size=num_blocks, max_size=num_blocks))
    return Request(tuple(ids), num_tokens, size)


@settings(max_examples=60, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), st.integers(0, 10**6))
def test_what_is_written_is_read_again(folder, written, timestamp):
    lines = [to_line(one, timestamp=timestamp, output_length=7) for one in written]
    assert read_lines(folder, *lines) == written


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["hash_ids", "input_length", "block_tokens", "requests", "t", "in"]), inner
    ),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode()), st.sampled_from(["auto", "weka"]))  # fmt: skip
def test_any_bytes_are_requests_or_one_error(folder, content, name):
    path = folder / "hostile.jsonl"
    path.write_bytes(content)
    try:
        told = repr(read(path, format=name))
    except ConfigError as error:
        told = str(error)
    assert "Request(" in told or str(path) in told


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ('{"input_length": 7', "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[1]", "is no JSON object"),
        ('{"input_length": 700}', "hash_ids is None"),
        ('{"hash_ids": [1, 2]}', "trace.recorded_block_tokens"),
        (line(700, 1), "1 hash_ids, and 700 tokens are 2 blocks of 512"),
        (line(-1), "input_length is -1"),
        (line(True, 1), "input_length is True"),
        (line(1e3, 1, 2), "input_length is 1000.0"),
        (line(700, 1, "a"), "hash_ids[1] is 'a'"),
        (line(700, 1, True), "hash_ids[1] is True"),
        (line(700, -1, 2), "hash_ids[0] is -1"),
        (line(700, 1, 2**64), "hash_ids[1] is 18446744073709551616"),
        (line(700, 1, block_tokens=0), "block_tokens is 0"),
    ],
)
def test_a_broken_line_is_named_with_its_fault_and_a_fix(tmp_path, broken, words):
    with pytest.raises(ConfigError) as caught:
        read_lines(tmp_path, *[GOOD] * 16, broken)

    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'trace.jsonl'}:17: trace.path: ")
    assert words in text
    assert caught.value.problems[0].fix


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n\n  \n"])
def test_how_lines_end_is_no_matter(tmp_path, line_end):
    path = tmp_path / "trace.jsonl"
    path.write_bytes("\ufeff".encode() + f"{GOOD}{line_end}{GOOD}".encode())
    assert read(path) == [Request((1, 2), 700, 512)] * 2


def test_block_sizes_stand_in_the_line_or_in_the_settings(tmp_path):
    minimal = '{"hash_ids": [4, 5]}'
    own = '{"hash_ids": [4, 5], "block_tokens": 16}'
    assert read_lines(tmp_path, minimal, recorded_block_tokens=8) == [Request((4, 5), 16, 8)]
    assert read_lines(tmp_path, own) == [Request((4, 5), 32, 16)]
    assert read_lines(tmp_path, line(20, 4, 5, block_tokens=16)) == [Request((4, 5), 20, 16)]
    with pytest.raises(ConfigError, match=r"block_tokens is 16.*recorded_block_tokens is 8"):
        read_lines(tmp_path, own, recorded_block_tokens=8)


def test_tokens_are_a_pure_function_of_the_hash_id(tmp_path):
    first, second = (
        one.tokens() for one in read_lines(tmp_path, line(1024, 7, MAX_ID), line(700, 7, 9))
    )

    assert (len(first), len(second)) == (1024, 700)
    assert np.array_equal(first[:512], second[:512])
    assert not np.array_equal(first[512:700], second[512:])
    assert len(set(first.tolist())) == 1024


def test_smaller_blocks_scale_the_partial_one_alike(tmp_path):
    lines = [line(1024 + 256, 7, 8, 9), line(1025, 7, 8, 9)]
    assert read_lines(tmp_path, *lines, block_tokens=64) == [
        Request((7, 8, 9), 64 * 2 + 32, 64),
        Request((7, 8), 64 * 2, 64),  # a token scales to none
    ]


def test_the_limit_counts_what_is_not_skipped(tmp_path):
    lines = [line(5000, *range(10)), line(100, 1), line(5000, *range(10)), line(90, 2), line(80, 3)]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    settings = {"format": "auto", "path": str(tmp_path / "trace.jsonl"), "max_input_tokens": 1000}
    found, skipped = read_requests({**settings, "limit": 2})
    assert ([one.num_tokens for one in found], skipped) == ([100, 90], 2)

    with pytest.raises(ConfigError, match=r"holds no request \(5 are too long\).*max_input_tokens"):
        read_requests({**settings, "max_input_tokens": 10})


def test_all_settings_that_cannot_be_are_told_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_lines(tmp_path, GOOD, block_tokens=0, recorded_block_tokens=-3, limit=0)
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["trace.block_tokens", "trace.recorded_block_tokens", "trace.limit"]


def test_what_is_not_there_or_has_no_known_name_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"trace\.path: cannot read .*missing\.jsonl.*No such"):
        read(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match=r"trace\.txt.*Set trace\.format"):
        read(tmp_path / "trace.txt")
    with pytest.raises(ConfigError, match=r"holds no request"):
        read(tmp_path)
    (tmp_path / "trace.jsonl").touch()
    with pytest.raises(ConfigError, match=r"trace\.jsonl holds no request"):
        read(tmp_path / "trace.jsonl")
    with pytest.raises(ConfigError, match=r"trace\.format: there is no trace 'weeka'.*'weka'"):
        read(tmp_path, format="weeka")


def session(*entries, **more):
    return json.dumps({"block_size": 4, "requests": entries, **more})


def entry(at_s, length, *hash_ids):
    return {"t": at_s, "type": "s", "in": length, "hash_ids": hash_ids}


def test_sessions_of_a_folder_go_in_order_of_time_each_with_ids_of_its_own(tmp_path):
    agent = {
        "t": 1.0,
        "type": "subagent",
        "requests": [entry(0.0, 8, 1, 3), entry(9.0, 12, 1, 3, 4)],
    }
    (tmp_path / "b.json").write_text(session(entry(0.5, 8, 1, 2), entry(20.0, 8, 1, 2)))
    (tmp_path / "a.json").write_text(session(entry(0.0, 6, 1), agent, entry(2.0, 4, 1)))
    found = read(tmp_path)

    assert [one.num_tokens for one in found] == [6, 8, 8, 12, 4, 8]
    a1, b1, a2, a3, a4, b2 = (one.hash_ids for one in found)
    assert len(a1) == 2  # the partial block, which the session does not name, is like no other
    assert a1[0] == a2[0] == a3[0] == a4[0]
    assert a2[1] == a3[1]
    assert b1 == b2
    own = [set(ids) for ids in (a1, a2 + a3, b1)]
    assert (own[0] & own[1], own[2] & (own[0] | own[1])) == ({a1[0]}, set())
    assert read(tmp_path / "b.json") == read(tmp_path / "b.json", format="weka")


def test_sessions_may_have_ids_in_common(tmp_path):
    for name in "ab":
        text = session(entry(0.0, 8, 1, 2), entry(1.0, 6, 1, 2), hash_id_scope="global")
        (tmp_path / f"{name}.json").write_text(text)
    assert len({one.hash_ids for one in read(tmp_path)}) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("{}", "requests is None"),
        (session(3), "requests[0] is no JSON object"),
        (session(entry(0, 8, 1, 2), entry(0, 8, 1)), "requests[1].hash_ids has 1 of them"),
        (session(entry("now", 8, 1, 2)), "requests[0].t is 'now'"),
        (session(entry(0, None, 1, 2)), "requests[0].in is None"),
        (session({"t": 0, "requests": [entry(0, 8, 1, -2)]}),
         "requests[0].requests[0].hash_ids[1] is -2"),
        (session(block_size="64"), "block_size is '64'"),
        (session(hash_id_scope=[1]), "hash_id_scope is [1]"),
    ],
)  # fmt: skip
def test_a_broken_session_is_named_with_its_fault(tmp_path, text, words):
    path = tmp_path / "session.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: trace.path: {words}")


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_states_every_setting_and_its_default(path):
    section = yaml.safe_load(path.read_text())
    params = TRACES.get(section.pop("format")).Params()
    stated = {key: None if value == "???" else value for key, value in section.items()}
    assert stated == {one.name: getattr(params, one.name) for one in fields(params)}


def test_a_format_of_a_users_own(monkeypatch):
    @dataclass
    class Params(TraceParams):
        num_requests: int = 2

    class Mine:
        @staticmethod
        def read(params):
            return (Request((one,), 3, 4) for one in range(params.num_requests))

    Mine.Params = Params
    monkeypatch.setattr(TRACES, "_things", dict(TRACES._things))
    TRACES.register("mine")(Mine)
    found, _ = read_requests({"format": "mine", "num_requests": 3, "limit": 2})
    assert found == [Request((0,), 3, 4), Request((1,), 3, 4)]


def test_the_command_tells_it_in_one_line(kvpool, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{GOOD}\n{line(700, 1)}\n")
    ended = kvpool("job=replay", "layers_per_pool=2", "backend=memory", f"trace.path={path}")

    assert (ended.code, len(ended.err.strip().splitlines())) == (2, 1)
    assert f"{path}:2: trace.path: has 1 hash_ids" in ended.err
    assert not list((tmp_path / "cwd").iterdir())
