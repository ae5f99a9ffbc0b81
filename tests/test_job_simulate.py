"""The simulate job: what it says, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.test_job_replay import line, write_trace

SMALL = (
    "job=simulate",
    "model=qwen3_next_80b",
    "page_size=16",
    "trace.block_tokens=32",
    "host.memory=8GiB",
    "device.memory=6GiB",
    "json=result.json",
)


@pytest.fixture
def trace(tmp_path):
    lines = [line(700, 1, 2), line(1500, 1, 3, 4), line(9000, *range(100, 118)), line(800, 1, 5)]
    return f"trace.path={write_trace(tmp_path / 'trace.jsonl', *lines, line(1600, 1, 3, 4, 6))}"


def result(tmp_path):
    return json.loads((tmp_path / "cwd" / "result.json").read_text())


def test_a_simulation_says_what_was_hit_moved_and_given_up(kvpool, tmp_path, trace):
    ended = kvpool(*SMALL, trace, "job.links.storage.gb_s=2")

    assert ended.code == 0, ended.err
    found = result(tmp_path)
    hits = found["hit_tokens"]
    assert (found["requests"], found["skipped"], found["page_size"]) == (5, 0, 16)
    assert hits["device"] > 0
    assert found["hit_rate"] == pytest.approx(sum(hits.values()) / found["input_tokens"])
    assert found["hit_rate"] <= found["ideal_hit_rate"]
    assert found["ideal_full_pages"]["pages"] == found["pages"] == found["input_tokens"] // 16 - 2
    assert found["objects_written"] == found["storage_objects"] > 0
    assert found["moved"]["write_storage"]["bytes"] == found["storage_bytes"]
    assert found["modelled_s"] == pytest.approx(found["storage_bytes"] / 2e9)
    assert found["host_bytes"] <= 8 * 2**30
    assert found["slots"]["device"].keys() == found["evicted"]["device"].keys() == {"kv", "linear"}
    assert found["occupancy"][-1]["request"] == 5
    for words in ("hits", "ideal", "evictions", "write_storage", "checkpoints kept", "us a page"):
        assert words in ended.out
    assert [path.name for path in (tmp_path / "cwd").iterdir()] == ["result.json"]


def test_tiers_can_be_left_out(kvpool, tmp_path, trace):
    ended = kvpool(*SMALL, trace, "host.memory=0")
    assert ended.code == 0, ended.err
    found = result(tmp_path)
    assert (found["host_bytes"], found["storage_objects"], found["objects_written"]) == (0, None, 0)
    assert found["slots"]["host"] == {"kv": 0, "linear": 0}
    assert list(found["evicted"]) == ["device", "host"]
    assert "no storage tier" in ended.out

    ended = kvpool(*SMALL, trace, "job.storage=0")
    assert ended.code == 0, ended.err
    found = result(tmp_path)
    assert found["storage_objects"] is None
    assert found["moved"]["backup"]["bytes"] > 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("job.storage=lots", ["job.storage", "'lots'", "null: unlimited"]),
        ("job.links.host.gb_s=0", ["job.links.host.gb_s"]),
        ("host.memory=1KiB", ["host.memory", "holds not one page"]),
        ("host.memory=much", ["host.memory", "'much'"]),
        ("job.links.hots.gb_s=1", ["hots", "host"]),
    ],
)
def test_a_setting_that_cannot_be_is_one_message(kvpool, tmp_path, trace, setting, words):
    ended = kvpool(*SMALL, trace, setting)

    assert ended.code == 2
    for word in words:
        assert word in ended.err
    assert not list((tmp_path / "cwd").iterdir())
