"""job=bench: every row runs at a tiny size; what it says about time is nobody's to assert."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

import pytest

from composer.errors import BackendError
from composer.jobs.bench.frame import GB_PER_S, MS, Case, Target, measure
from composer.jobs.bench.job import ROWS
from composer.registry import BACKENDS

TINY = (
    "job=bench", "backend=memory", "layers_per_pool=2", "job.rounds=1", "job.pages=2",
    "job.python_pages=64", "job.prompt_tokens=1024", "job.storage_batch=1MiB",
)  # fmt: skip
LAYOUTS = ("layer_first", "page_envelope", "page_first", "page_first_direct", "page_head")


@pytest.fixture
def bench(kvpool):
    """Runs rows through the command and returns its JSON and what it printed."""

    def bench(*arguments):
        ended = kvpool(*TINY, *arguments, "json=bench.json")
        assert ended.code == 0, ended.err
        assert [path.name for path in Path.cwd().iterdir()] == ["bench.json"]
        return json.loads(Path("bench.json").read_text()), ended.out

    return bench


def check_figures(rows):
    assert rows
    for row in rows:
        for key in ("ours", "reference", "best", "best_reference", "ratio"):
            assert isfinite(row[key]), (row["name"], key)
            assert row[key] > 0, (row["name"], key)
        has_target = row["target_ratio"] is not None or row["target_figure"] is not None
        assert (row["met"] is not None) == has_target


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"storage"}))
def test_a_row_has_finite_figures_beside_a_reference(bench, name):
    data, printed = bench(f"job.rows=[{name}]")
    assert {row["row"] for row in data["rows"]} == {name}
    check_figures(data["rows"])
    for row in data["rows"]:
        assert row["name"] in printed
    assert data["skipped"] == {}


@pytest.mark.mooncake
def test_storage_is_measured_with_both_ways_to_verify(bench):
    data, _ = bench("job.rows=[storage]")
    check_figures(data["rows"])
    assert {row["name"] for row in data["rows"]} == {
        f"{call} {verify}"
        for call in ("write_storage", "prefetch")
        for verify in ("identity", "checksum")
    }


def test_storage_is_skipped_with_a_reason_where_there_is_no_library(bench, monkeypatch):
    monkeypatch.setattr("composer.jobs.bench.storage.LIBRARY", "no_such_library")
    data, printed = bench("job.rows=[storage]")
    assert data["rows"] == []
    assert data["skipped"] == {"storage": "the Mooncake library is not installed"}
    assert "storage: skipped, the Mooncake library is not installed" in printed


def test_a_store_that_fails_costs_its_own_row_and_exit_code_1(kvpool, monkeypatch):
    def refuse(name, params):
        raise BackendError("nobody listens")

    monkeypatch.setattr(BACKENDS, "build", refuse)
    monkeypatch.setattr("composer.jobs.bench.storage.LIBRARY", "json")  # one that there is
    ended = kvpool(*TINY, "job.rows=[storage,boundary]", "json=bench.json")
    data = json.loads(Path("bench.json").read_text())
    assert ended.code == 1
    assert data["failed"] == {"storage": "nobody listens"}
    assert {row["row"] for row in data["rows"]} == {"boundary"}
    assert "storage: FAILED, nobody listens" in ended.out


@pytest.mark.parametrize("model", ["qwen3_next_80b", "gemma3_27b", "mamba2_2_7b"])
def test_models_with_heads_windows_and_states_are_measured_too(bench, model):
    data, _ = bench(f"model={model}", "job.rows=[copies,objects,match]", "job.pages=1")
    check_figures(data["rows"])
    copied = {row["name"] for row in data["rows"] if row["row"] == "copies"}
    assert copied == {f"{way} {layout}" for way in ("backup", "load_back") for layout in LAYOUTS}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("job.rows=[match,copy]", "there is no row 'copy'. Known: boundary, config, copies, "),
        ("job.rows=[]", "names nothing to measure. Known: boundary, "),
        ("job.rounds=0", "job.rounds: 0 is less than one"),
        ("job.threads=0", "job.threads: 0 is less than one"),
        ("job.storage_batch=much", "job.storage_batch: 'much' is no size"),
    ],
)
def test_what_cannot_be_measured_is_one_message(kvpool, setting, message):
    ended = kvpool(*TINY, setting)
    assert (ended.code, ended.out) == (2, "")
    assert f"kvpool: error: override '{setting}': job." in ended.err
    assert message in ended.err


def test_both_sides_are_called_in_turns_and_the_first_changes():
    calls: list[str] = []

    def case(**more):
        return Case(
            "name",
            "size",
            MS,
            lambda: calls.append("ours"),
            lambda: calls.append("theirs"),
            "",
            **more,
        )

    measure(case(before=lambda: calls.append("before")), rounds=2)
    rounds = [name for name in calls if name != "before"]
    assert rounds == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]  # warm-up, two rounds
    assert calls.count("before") == len(rounds)


def test_a_rate_grows_with_speed_and_a_time_shrinks():
    assert GB_PER_S.figure(seconds=2.0, amount=4e9) == 2.0
    assert MS.figure(seconds=2.0, amount=4) == 500.0


@pytest.mark.parametrize(
    ("target", "ratio", "figure", "met"),
    [
        (Target(ratio=0.9), 0.9, 1e9, True),
        (Target(ratio=0.9), 0.89, 0.0, False),
        (Target(figure=0.6), 0.0, 0.6, True),
        (Target(figure=0.6), 9.0, 0.61, False),
        (Target(ratio=0.5, figure=1.0), 0.6, 2.0, False),
    ],
)
def test_a_target_is_met_where_all_it_asks_for_is(target, ratio, figure, met):
    assert target.is_met(ratio, figure) is met
