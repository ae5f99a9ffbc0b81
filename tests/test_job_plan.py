"""job=plan: figures, the tables, and the JSON, without memory and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from composer.config import to_cli_config
from composer.errors import ConfigError
from composer.jobs.plan import Params, run
from composer.jobs.tables import compact
from tests.model_configs import PRESETS, composed

ROOT = Path(__file__).parents[1]
EXAMPLE = "deepseek_v3_2"


def planned(model=EXAMPLE, *dotlist):
    config = OmegaConf.merge(composed(model), OmegaConf.from_dotlist(list(dotlist)))
    return run(to_cli_config(config), Params()).data


def test_pages_and_objects_have_the_sizes_of_the_model():
    data = planned()
    assert data["page_size"] == 64
    assert data["pools"]["kv"]["page_bytes"] == 4_497_408
    assert data["pools"]["indexer"]["page_bytes"] == 515_328
    assert data["pools"]["kv"]["bytes_per_token"] == 70_272
    assert data["objects_per_million_tokens"] == 15_625
    assert data["arenas"]["kv"]["payload_bytes"] == 4_497_408 + 515_328
    assert data["bytes_per_million_tokens"] == 15_625 * data["arenas"]["kv"]["object_bytes"]


def test_draft_pools_are_listed_when_off_and_counted_only_when_on():
    off, on = planned(), planned(EXAMPLE, "draft=true")
    assert off["pools"]["draft_kv"]["page_bytes"] == on["pools"]["draft_kv"]["page_bytes"] == 73_728
    assert [pool["enabled"] for pool in off["pools"].values()] == [True, True, False, False]
    assert all(pool["enabled"] for pool in on["pools"].values())
    assert on["objects_per_million_tokens"] == 2 * off["objects_per_million_tokens"]
    slots = [data["spaces"]["kv"]["host_slots"] for data in (off, on)]
    assert slots[0] > slots[1]


@pytest.mark.parametrize(
    ("layout", "runs"),
    [("page_envelope", 1), ("page_first_direct", 2), ("layer_first", 2 * 61)],
)
def test_a_page_has_the_runs_of_its_layout(layout, runs):
    axes = {
        "page_envelope": "[page,buffer,layer,token,head]",
        "page_first_direct": "[buffer,page,layer,token,head]",
        "layer_first": "[buffer,layer,page,token,head]",
    }
    data = planned(EXAMPLE, f"layout.axes={axes[layout]}")
    assert data["layout"]["name"] == layout
    assert data["arenas"]["kv"]["runs_per_page"] == runs


@pytest.mark.parametrize("model", PRESETS)
def test_the_budgets_of_a_preset_hold_what_they_are_planned_to_hold(model):
    data = planned(model, "host.memory=64GiB", "device.memory=64GiB", "host.reserve=1GiB")
    budgets = data["budgets"]
    for tier, reserve in (("host", 2**30), ("device", 0)):
        used, left = data[f"{tier}_bytes"], budgets[f"{tier}_left_bytes"]
        assert used > 0
        assert left >= 0
        assert used + left + reserve == 64 * 2**30
    assert sum(space["host_bytes"] for space in data["spaces"].values()) == data["host_bytes"]
    assert sum(space["device_bytes"] for space in data["spaces"].values()) == data["device_bytes"]
    assert budgets["sum_bytes"] == 2 * 64 * 2**30 + budgets["lent_bytes"]
    arenas = data["arenas"].values()
    total = sum(arena["bytes_per_million_tokens"] for arena in arenas)
    assert abs(total - data["bytes_per_million_tokens"]) <= len(arenas)  # each is rounded up


def test_what_a_rank_holds_stands_beside_what_the_model_holds():
    pool = planned("qwen3_next_80b", "parallel.tp.size=2")["pools"]["kv"]
    assert pool["bytes_per_token"] * 2 == pool["model_bytes_per_token"]
    assert pool["shard_class"] == "heads"


def test_states_have_bytes_per_state_and_no_bytes_per_token():
    data = planned("mamba2_2_7b")
    pools = [pool for pool in data["pools"].values() if pool["unit"] == "state"]
    assert pools
    for pool in pools:
        assert pool["bytes_per_token"] is None
        assert pool["page_bytes"] > 0
    assert all(space["host_tokens"] is None for space in data["spaces"].values())


def test_a_segment_that_is_no_size_is_an_error_at_its_key():
    with pytest.raises(ConfigError, match=r"backend\.segment: 'much' is no size"):
        planned(EXAMPLE, "backend.segment=much")


def test_the_tables_show_each_pool_and_space_whole(capsys):
    data = planned("qwen3_next_80b")
    printed = capsys.readouterr().out
    assert "Qwen3-Next" in printed.splitlines()[0]
    assert data["namespace"] in printed
    assert "3,7,…,47" in printed
    assert "…" not in printed.replace("3,7,…,47", "")  # nothing is cut off
    for name, space in data["spaces"].items():
        assert any(
            line.split()[:1] == [name] and f" {space['host_slots']:,} " in line
            for line in printed.splitlines()
        )


def test_the_command_writes_plain_json_that_says_where_values_come_from(kvpool):
    ended = kvpool(f"model={EXAMPLE}", "host.memory=3GiB", "backend=memory", "json=plan.json")
    assert (ended.code, ended.err) == (0, "")
    data = json.loads(Path("plan.json").read_text())
    assert data["config"]["host"]["memory"] == "3GiB"
    assert data["config"]["storage"]["verify"] == "checksum"
    assert data["origins"]["host.memory"] == "override 'host.memory=3GiB'"
    assert data["origins"]["host.reserve"] == "default"
    assert data["origins"]["config.num_hidden_layers"].endswith(".yaml:" + _line_of_layers())
    assert data["budgets"]["lent_bytes"] == 0


def _line_of_layers() -> str:
    lines = (ROOT / f"conf/model/{EXAMPLE}.yaml").read_text().splitlines()
    return str(1 + next(n for n, line in enumerate(lines) if "num_hidden_layers" in line))


def test_the_plan_imports_neither_torch_nor_mooncake(tmp_path):
    code = (
        "import sys; from composer.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'torch', 'mooncake'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "job=plan"],
        capture_output=True, text=True, cwd=tmp_path, check=True,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "-"),
        ([4], "4"),
        ([0, 1], "0,1"),
        ([0, 1, 2, 3], "0-3"),
        ([3, 7, 11, 15], "3,7,…,15"),
        ([3, 7, 11], "3,7,11"),
        ([0, 2, 3, 4, 9], "0,2-4,9"),
        ([0, 1, 2, 4, 5, 6, 8], "0-2,4-6,8"),
    ],
)
def test_layers_are_written_in_few_characters(numbers, text):
    assert compact(numbers) == text
