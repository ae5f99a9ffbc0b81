"""job=ttft: what it measures, what it reports, and what it refuses."""

from __future__ import annotations

import json

import pytest

from composer.jobs.ttft_measure import COLD, ELSEWHERE, UNCACHED, WARM
from composer.jobs.ttft_report import break_even

TINY = [
    "job=ttft", "job.threads=1", "job.rounds=1", "job.prefix_tokens=[64,32]",
    "job.question_tokens=8", "page_size=16", "checkpoint_tokens=32",
    "host.memory=32MiB", "device.memory=32MiB",
    *(
        f"job.model_config.{field}"
        for field in (
            "hidden_size=32", "intermediate_size=32", "head_dim=16", "linear_key_head_dim=16",
            "linear_value_head_dim=16",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ([1, 2, 3], 100),  # from the shortest on
        ([-1, 1, 2], 150),
        ([1, -3, 1], 350),  # the last crossing counts
        ([1, 2, -1], None),
        ([-1, 0, 1], 200),
    ],
)
def test_the_break_even_is_where_the_saving_begins_and_does_not_end_again(saved, expected):
    assert break_even([100, 200, 400], saved) == expected


def measured(kvpool, tmp_path, *arguments):
    ended = kvpool(*TINY, "json=out.json", *arguments)
    assert ended.code == 0, ended.err
    return ended, json.loads((tmp_path / "cwd" / "out.json").read_text())


def test_it_restores_from_every_tier_and_the_answers_agree(kvpool, tmp_path):
    ended, data = measured(kvpool, tmp_path, "backend=memory", "job.plot=plot.html")
    rows = {(row["kind"], row["prefix_tokens"]): row for row in data["rows"]}
    assert rows.keys() == {(k, n) for k in (UNCACHED, COLD, *WARM) for n in (32, 64)}
    restored = {key: row["restored_tokens"] for key, row in rows.items()}
    assert restored == {(k, n): n if k in WARM else 0 for k, n in rows}
    assert all(len(row["rounds_s"]) == 1 and row["ttft_s"] > 0 for row in rows.values())
    assert data["wrong"] == 0
    assert data["break_even_tokens"].keys() == {COLD, *WARM}
    for word in ("without cache", "faster from", "wrong answers  0"):
        assert word in ended.out
    page = (tmp_path / "cwd" / "plot.html").read_text()
    assert all(kind in page for kind in (UNCACHED, *WARM))
    assert 'src="http' not in page


@pytest.mark.slow
def test_another_process_restores_from_the_store(kvpool, tmp_path):
    _, data = measured(kvpool, tmp_path, "backend=file")
    elsewhere = [row for row in data["rows"] if row["kind"] == ELSEWHERE]
    assert [row["restored_tokens"] for row in elsewhere] == [32, 64]
    assert data["wrong"] == 0


def test_a_tier_that_is_too_small_is_told_apart(kvpool, tmp_path):
    ended, data = measured(kvpool, tmp_path, "backend=memory", "device.memory=48KiB")
    short = [row for row in data["rows"] if row["kind"] in WARM and row["prefix_tokens"] == 64]
    assert all(row["restored_tokens"] < 64 for row in short)
    assert "a tier is too small" in ended.out


def test_all_that_makes_no_sense_is_said_at_once(kvpool):
    settings = ["job.prefix_tokens=[60]", "job.question_tokens=16", "job.rounds=0"]
    ended = kvpool(*TINY, *settings, "job.plot=nowhere/plot.html", "backend=memory")
    assert ended.code == 2
    for word in ("no multiple of page_size", "job.question_tokens", "job.rounds", "no folder"):
        assert word in ended.err


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("job.model_path=/nowhere", "job.model_path: there is no config.json"),
        ("job.model_config.model_type=nothing", "job.model_config: its fields are of no model"),
        ("job.model_config.max_position_embeddings=70", "has 72 tokens, and the model takes 70"),
    ],
)
def test_a_model_that_cannot_be_measured_is_an_error(kvpool, setting, says):
    ended = kvpool(*TINY, setting, "backend=memory")
    assert (ended.code, says in ended.err) == (2, True), ended.err
