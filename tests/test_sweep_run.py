"""Sweeps as users run them: several launchers and sweepers, points that fail, the report again."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from composer.sweep.callback import SweepCallback
from composer.sweep.point import POINT, Point
from composer.sweep.summary import refresh

ROOT = Path(__file__).parents[1]
FAILING = "page_size=32,48,64"  # 48 is no multiple of what the preset wants


@pytest.fixture
def sweep(kvpool, presets):
    """Runs a sweep of the tiny preset into the folder ``s``; gives back how it ended."""
    presets.write_model("mine", "pools: {kv: {page_multiple: 32}}\n")

    def sweep(*arguments):
        flags = ["-m", f"--config-dir={presets.folder}"]
        settings = ["backend=memory", "model=mine", "hydra.sweep.dir=s", *arguments]
        return kvpool(*flags, *settings)

    return sweep


def rows() -> list[dict[str, str]]:
    with Path("s/summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_point_that_fails_is_a_row_and_the_others_run(sweep):
    ended = sweep("job=plan", FAILING)
    assert ended.code == 0
    assert [(row["page_size"], row["status"]) for row in rows()] == [
        ("32", "ok"),
        ("48", "failed"),
        ("64", "ok"),
    ]
    assert "page_size 48 is no multiple of 32" in rows()[1]["error"]
    assert rows()[0]["objects_per_million_tokens"] == "31250"
    assert "kvpool: #1 page_size=48: FAILED: " in ended.err
    assert "kvpool: #2 page_size=64: bytes_per_million_tokens " in ended.err
    assert "Traceback" not in ended.err
    assert "3 points, 1 failed; the best" in ended.out
    assert "page_bytes" not in ended.out  # what the jobs print is in their folders
    assert Path("s/report.html").exists()
    assert "kv" in Path("s/0/output.txt").read_text()
    assert json.loads(Path("s/2/result.json").read_text())["page_size"] == 64


def test_the_summary_is_true_after_every_job(sweep, monkeypatch):
    seen = []
    keep = SweepCallback.on_job_end

    def look(self, config, job_return):
        keep(self, config, job_return)
        seen.append([(row["page_size"], row["status"]) for row in rows()])

    monkeypatch.setattr(SweepCallback, "on_job_end", look)
    sweep("job=plan", FAILING)
    everything = [("32", "ok"), ("48", "failed"), ("64", "ok")]
    assert seen == [everything[:1], everything[:2], everything]


def test_a_sweep_of_which_every_point_fails_exits_2(sweep):
    ended = sweep("job=plan", "page_size=33,48")
    assert ended.code == 2
    assert [row["status"] for row in rows()] == ["failed", "failed"]
    assert "2 points, and all failed" in ended.out


def test_a_key_of_one_swept_choice_alone_is_told_how_to_be_written(kvpool):
    ended = kvpool("-m", "job=simulate", "backend=memory,file", "backend.path=/x", "page_size=64")
    assert ended.code == 2
    assert "Where only some choices of backend have it, write +backend.path=..." in ended.err


def test_a_point_s_command_runs_it_alone(sweep, kvpool):
    sweep("job=plan", "page_size=32,64", "+pools.kv.weight=2", "trace.path='a b.jsonl'")
    words = shlex.split(rows()[1]["command"])
    assert words[0] == "kvpool"
    assert kvpool(*words[1:], "json=alone.json").code == 0
    alone = json.loads(Path("alone.json").read_text())
    together = json.loads(Path("s/1/result.json").read_text())
    assert alone["config"]["pools"]["kv"]["weight"] == 2
    assert alone["spaces"] == together["spaces"]


def test_an_objective_is_any_number_of_the_result(sweep):
    ended = sweep("job=plan", "page_size=32,64", "objective=-pools.kv.page_bytes")
    assert ended.code == 0
    table = [line.split() for line in ended.out.splitlines() if " B" in line or "KiB" in line]
    assert [words[:2] for words in table] == [["0", "32"], ["1", "64"]]


def test_an_objective_that_the_result_lacks_fails_the_point_and_keeps_the_result(sweep):
    ended = sweep("job=plan", "page_size=32", "objective=num_layer")
    assert ended.code == 2
    assert "objective: the result has no number 'num_layer'. Did you mean" in rows()[0]["error"]
    assert Path("s/0/result.json").exists()


def test_a_fault_of_ours_is_a_row_with_its_traceback_on_the_terminal(sweep, monkeypatch):
    monkeypatch.setattr("composer.jobs.plan.make_plan", lambda *_: 1 / 0)
    ended = sweep("job=plan", "page_size=32,64")
    assert ended.code == 2
    assert rows()[0]["error"] == "ZeroDivisionError: division by zero"
    assert "Traceback" in ended.err


def test_the_report_is_made_again_of_what_has_run(sweep, kvpool):
    sweep("job=plan", FAILING)
    Path("s/0/point.json").unlink()  # as if it had not run yet
    Path("s/report.html").unlink()
    ended = kvpool("job=report", "job.folder=s", "report.x=nothing", "json=best.json")
    assert ended.code == 0
    assert "report.x: there is no 'nothing'" in ended.out
    assert json.loads(Path("best.json").read_text())["failed"] == [1]
    assert Path("s/report.html").exists()
    assert kvpool("job=report", "job.folder=nowhere").code == 2


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "composer", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip


def points(folder: Path) -> list[Point]:
    return list(refresh(folder).points)


@pytest.mark.slow
def test_a_search_goes_on_past_points_that_cannot_be_and_finds_the_best(tmp_path, presets):
    presets.write_model("mine", "pools: {kv: {page_multiple: 32}}\n")
    done = run(
        tmp_path, "-m", f"--config-dir={presets.folder}", "model=mine", "backend=memory",
        "hydra/sweeper=search", "hydra.sweeper.n_trials=9", "hydra/sweeper/sampler=grid",
        "hydra.sweep.dir=s", "page_size=choice(33,32,48,64,128)",
        "objective=-objects_per_million_tokens",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = points(tmp_path / "s")
    assert sorted(point.overrides["page_size"] for point in found if point.error) == ["33", "48"]
    best = yaml.safe_load((tmp_path / "s/optimization_results.yaml").read_text())
    assert (best["best_params"], best["best_value"]) == ({"page_size": 128}, -7813.0)


@pytest.mark.slow
def test_optuna_as_it_is_would_look_for_the_worst_and_is_refused(tmp_path):
    done = run(
        tmp_path, "-m", "backend=memory", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2",
        "page_size=choice(32,64)",
    )  # fmt: skip
    assert done.returncode == 2
    assert "hydra.sweeper.direction: is minimize" in done.stderr
    assert "Use hydra/sweeper=search" in done.stderr


@pytest.mark.slow
def test_a_value_that_cannot_be_composed_ends_a_search_with_one_message(tmp_path):
    done = run(
        tmp_path, "-m", "backend=memory", "hydra/sweeper=search", "hydra.sweeper.n_trials=4",
        "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=6",
        "page_size=choice(64,abc)", "hydra.sweep.dir=s",
    )  # fmt: skip
    assert done.returncode == 2
    assert "kvpool: error: override 'page_size=" in done.stderr
    assert "Traceback" not in done.stderr
    assert points(tmp_path / "s")[0].status == "ok"  # those before it are kept


@pytest.mark.slow
def test_jobs_in_other_processes_are_in_one_summary(tmp_path):
    done = run(
        tmp_path, "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=s",
        "job=simulate", "model=qwen3_next_80b", "layers_per_pool=1", "trace.limit=20",
        "device.memory=512MiB", "host.memory=1KiB,1GiB,2GiB",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = points(tmp_path / "s")
    assert [point.status for point in found] == ["failed", "ok", "ok"]
    assert "host.memory" in (found[0].error or "")
    assert all(point.number_of("hit_rate") is not None for point in found[1:])
    with (tmp_path / "s/summary.csv").open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["failed", "ok", "ok"]
    assert "host and device memory" in done.stdout
    assert (tmp_path / "s/report.html").exists()


@pytest.mark.slow
def test_a_bench_is_swept_over_layouts(tmp_path):
    done = run(
        tmp_path, "-m", "job=bench", "job.rows=[copies]", "job.all_layouts=false", "job.rounds=2",
        "job.pages=2", "layers_per_pool=1", "layout=page_envelope,page_first", "hydra.sweep.dir=s",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = points(tmp_path / "s")
    assert one.objective == two.objective == "copies.backup.gb_s"
    assert one.figures.keys() == two.figures.keys()
    rows = json.loads((tmp_path / "s/1" / "result.json").read_text())["rows"]
    assert {row["name"] for row in rows} == {"backup page_first", "load_back page_first"}
    assert one.score() > 0
    assert (tmp_path / "s/0" / POINT).exists()
