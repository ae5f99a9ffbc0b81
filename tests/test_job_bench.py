"""job=bench: every row runs at a tiny size; what it says about time is nobody's to assert."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

import pytest

from composer.errors import BackendError, ConfigError
from composer.jobs.bench.baseline import read_baseline
from composer.jobs.bench.frame import GB_PER_S, MS, OBJECTS, Case, Count, Target
from composer.jobs.bench.job import ROWS
from composer.registry import BACKENDS

TINY = (
    "job=bench", "backend=memory", "layers_per_pool=2", "job.rounds=1", "job.pages=2",
    "job.python_pages=64", "job.prompt_tokens=1024", "job.storage_batch=1MiB",
    "trace=synthetic", "trace.num_sessions=2",
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
        low, high = row["ratio_range"]
        assert 0 < low <= row["ratio"] <= high
        assert (row["met"] is not None) == (row["target"] is not None)


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
        f"{call} {verify} ({way})"
        for call in ("write_storage", "prefetch")
        for verify in ("identity", "checksum")
        for way in ("local, page_envelope", "local, layer_first", "TCP, page_envelope")
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


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3_next_80b", "gemma3_27b", "mamba2_2_7b"])
def test_models_with_heads_windows_and_states_are_measured_too(bench, model):
    data, _ = bench(f"model={model}", "job.rows=[copies,objects,match,restore]", "job.pages=1")
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


def make_case(**more):
    return Case(name="name", size="size", unit=MS, reference_name="", **more)


def test_both_sides_are_called_in_turns_and_the_first_changes():
    calls: list[str] = []
    case = make_case(
        ours=lambda: calls.append("ours"),
        reference=lambda: calls.append("theirs"),
        before=lambda: calls.append("before"),
    )
    case.measure(rounds=2)
    rounds = [name for name in calls if name != "before"]
    assert rounds == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]  # warm-up, two rounds
    assert calls.count("before") == len(rounds)


def test_what_takes_long_is_called_as_often_as_it_says():
    calls: list[str] = []
    case = make_case(
        ours=lambda: calls.append("ours"),
        reference=lambda: calls.append("theirs"),
        before=lambda: None,
        most_rounds=1,
    )
    case.measure(rounds=9)
    assert sorted(calls) == ["ours", "theirs"]


def test_a_count_is_no_measurement():
    count = Count(
        name="", size="", unit=OBJECTS, reference_name="", ours=2, reference=3, target=Target(0.5)
    )
    measured = count.measure(rounds=9)
    assert (measured.ours, measured.reference, measured.ratio) == (2, 3, 1.5)
    assert measured.met


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


def test_a_page_of_all_pools_is_one_object(bench):
    data, _ = bench("job.rows=[stored]")
    told = {row["size"]: (row["ours"], row["reference"]) for row in data["rows"]}
    assert told["page 64"] == (15_625, 31_250)


class TestBaseline:
    ROWS = ("job.rows=[boundary,stored]",)
    CASE = {"row": "a", "name": "b", "size": "c", "ratio": 2.0, "ratio_range": [1.0, 3.0]}
    FACTS = {"model": "deepseek-ai/DeepSeek-V3.2", "page_size": 64}

    def test_ratios_are_compared_and_what_is_worse_is_told(self, bench, tmp_path):
        data, _ = bench(*self.ROWS)
        Path("bench.json").unlink()
        rows = data["rows"]
        changed = zip(rows[:2], (100, 0.01), strict=True)
        faster, slower = ({**row, "ratio": row["ratio"] * by} for row, by in changed)
        for one in (faster, slower):
            one["ratio_range"] = [one["ratio"] / 2, one["ratio"] * 2]
        path = tmp_path / "earlier.json"
        path.write_text(json.dumps({**data, "rows": [faster, slower, *rows[2:-1]]}))
        data, printed = bench(*self.ROWS, f"job.baseline={path}")
        verdicts = [one["verdict"] for one in data["changes"]]
        assert verdicts[:2] == ["worse", "better"]
        assert len(data["changes"]) == len(rows) - 1  # the last one is new
        assert data["changes"][-1] == {
            **{key: rows[-2][key] for key in ("row", "name", "size", "ratio")},
            "ratio_before": 2.0, "change": 0.0, "verdict": "",
        }  # fmt: skip
        worse = verdicts.count("worse")
        assert f"worse beyond the scatter of the rounds: {worse} of {len(verdicts)}" in printed

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rows": [{"hits": 3}]}, "earlier.json' is no result of this job"),
            ({"rows": [{**CASE, "ratio": "?"}]}, "earlier.json' is no result of this job"),
            ({"rows": None}, "earlier.json' is no result of this job"),
            ({"model": "another"}, "earlier.json' is of model another, not deepseek-ai"),
            ({"page_size": 128}, "earlier.json' is of page_size 128, not 64"),
        ],
    )
    def test_a_foreign_file_is_refused(self, tmp_path, changes, message):
        path = tmp_path / "earlier.json"
        path.write_text(json.dumps({**self.FACTS, "rows": [self.CASE], **changes}))
        with pytest.raises(ConfigError, match=r"job\.baseline: ") as refused:
            read_baseline(path, self.FACTS)
        assert message in str(refused.value)

    def test_a_missing_file_is_refused_before_anything_is_measured(self, kvpool):
        ended = kvpool(*TINY, *self.ROWS, "job.baseline=none.json")
        assert (ended.code, ended.out) == (2, "")
        assert "job.baseline: cannot read 'none.json'" in ended.err
        assert "Name what json=FILE of a job=bench has written" in ended.err

    def test_a_file_without_json_is_refused(self, tmp_path):
        path = tmp_path / "broken.json"
        path.write_text("{")
        with pytest.raises(ConfigError, match="cannot read"):
            read_baseline(path, self.FACTS)
