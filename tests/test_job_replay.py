"""The replay job: what it reports, and that it sees a wrong byte."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from composer.backends.memory import MemoryBackend
from composer.jobs.replay_tally import Outcome, Tally
from composer.registry import BACKENDS

SMALL = (
    "job=replay",
    "layers_per_pool=2",
    "page_size=16",
    "checkpoint_tokens=32",
    "trace.block_tokens=32",
    "host.memory=32MiB",
    "device.memory=32MiB",
    "json=result.json",
)


def write_trace(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def line(length, *hash_ids):
    return json.dumps({"input_length": length, "hash_ids": hash_ids})


@pytest.fixture
def trace(tmp_path):
    """Two talks of two turns each under one system prompt, and one prompt that is too long."""
    path = tmp_path / "trace.jsonl"
    lines = [line(700, 1, 2), line(1500, 1, 3, 4), line(9000, *range(100, 118)), line(800, 1, 5)]
    return f"trace.path={write_trace(path, *lines, line(1600, 1, 3, 4, 6), line(800, 1, 5))}"


@pytest.mark.parametrize("model", ["deepseek_v3_2", "qwen3_next_80b", "gemma3_27b", "mamba2_2_7b"])
def test_every_byte_that_is_hit_is_right_and_counted(kvpool, tmp_path, trace, model):
    ended = kvpool(*SMALL, f"model={model}", trace, "backend=memory", "trace.max_input_tokens=500")

    assert ended.code == 0, ended.err
    result = json.loads((tmp_path / "cwd" / "result.json").read_text())
    assert (result["requests"], result["skipped"], result["mismatches"]) == (5, 1, 0)
    assert result["hit_tokens"]["device"] > 0
    assert result["pages_verified"] + result["states_verified"] > 0
    assert result["objects"] > 0
    assert "mismatches" in ended.out
    assert [path.name for path in (tmp_path / "cwd").iterdir()] == ["result.json"]


def test_a_tier_that_is_too_small_is_no_error(kvpool, tmp_path, trace):
    tiny = ("device.memory=700KiB", "host.memory=900KiB", "model=deepseek_v3_2")
    ended = kvpool(*SMALL, *tiny, trace, "backend=memory")

    assert ended.code == 0, ended.err
    result = json.loads((tmp_path / "cwd" / "result.json").read_text())
    assert (result["requests"], result["mismatches"]) == (6, 0)
    assert result["hit_tokens"]["storage"] > 0


class FlippingBackend(MemoryBackend):
    """Gives one wrong bit in the first byte of every object."""

    def get(self, objects):
        import ctypes

        num_bytes = super().get(objects)
        for address in objects.addresses[:, 0].tolist():
            ctypes.c_uint8.from_address(address).value ^= 1
        return num_bytes


@pytest.fixture
def flipping(monkeypatch):
    monkeypatch.setitem(BACKENDS._things, "flipping", FlippingBackend)


def test_a_wrong_byte_is_told_and_ends_with_1(kvpool, tmp_path, trace, flipping):
    tiny = ("device.memory=700KiB", "host.memory=900KiB", "model=deepseek_v3_2")
    ended = kvpool(
        *SMALL, *tiny, trace, "backend=memory", "backend.name=flipping", "storage.verify=identity"
    )

    assert ended.code == 1, ended.err
    result = json.loads((tmp_path / "cwd" / "result.json").read_text())
    assert result["mismatches"] > 0
    assert "WRONG BYTES: kv.latent of page" in ended.out


def test_a_checksum_turns_the_wrong_byte_into_a_miss(kvpool, tmp_path, trace, flipping):
    tiny = ("device.memory=700KiB", "host.memory=900KiB", "model=deepseek_v3_2")
    ended = kvpool(*SMALL, *tiny, trace, "backend=memory", "backend.name=flipping")

    assert ended.code == 0, ended.err
    result = json.loads((tmp_path / "cwd" / "result.json").read_text())
    assert (result["mismatches"], result["hit_tokens"]["storage"]) == (0, 0)
    assert result["counters"]["read_refused.wrong_checksum"] > 0


@pytest.mark.parametrize("backend", ["file", pytest.param("mooncake", marks=pytest.mark.mooncake)])
def test_after_a_restart_hits_come_from_storage(kvpool, tmp_path, trace, backend):
    more = ["backend.segment=512MiB"] if backend == "mooncake" else []
    ended = kvpool(
        *SMALL, "model=qwen3_next_80b", trace, f"backend={backend}", "job.restart=true", *more
    )

    assert ended.code == 0, ended.err
    result = json.loads((tmp_path / "cwd" / "result.json").read_text())
    assert (result["requests"], result["mismatches"]) == (6, 0)
    assert result["hit_tokens"]["storage"] > 0
    assert result["states_verified"] > 0
    assert [path.name for path in (tmp_path / "cwd").iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("backend", "key", "fix"),
    [
        (["backend=memory"], "backend.name 'memory'", "backend=file"),
        (["backend=faulty", "backend.inner=memory"], "backend.inner", "backend.inner=file"),
    ],
)
def test_h2_memory_cannot_outlive_a_restart(kvpool, trace, backend, key, fix):
    ended = kvpool(*SMALL, trace, *backend, "job.restart=true")

    assert ended.code == 2
    assert "job.restart" in ended.err
    assert key in ended.err
    assert fix in ended.err


def test_outcomes_of_two_processes_add_up():
    first, second = Outcome(Tally(requests=2), {"backup": (10, 1.0)}), Outcome(Tally(requests=3))
    first.tally.hit_tokens.update(device=5)
    second.tally.hit_tokens.update(storage=7)
    second.moved, second.objects = {"backup": (5, 0.5)}, 4
    first.add(second)

    assert first.tally.requests == 5
    assert first.tally.hit_tokens == Counter(device=5, host=0, storage=7)
    assert first.moved == {"backup": (15, 1.5)}
    assert first.objects == 4
