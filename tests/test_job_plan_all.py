"""job=plan model=all: every preset in one table, in one process, in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer.config import load_config, to_cli_config
from composer.errors import ConfigError
from composer.jobs.plan import Params, run
from composer.jobs.plan_all import summary
from tests.model_configs import PRESETS, stack_config

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "models.json").read_text())


@pytest.fixture
def table(kvpool):
    """Runs the command, and gives its rows by model."""

    def table(*arguments, code=0):
        ended = kvpool(*arguments, "model=all", "json=all.json")
        assert (ended.code, ended.err) == (code, "")
        return json.loads(Path("all.json").read_text())["models"], ended.out

    return table


def test_every_preset_has_a_line_with_the_figures_of_the_catalogue(table):
    rows, printed = table()
    assert list(rows) == sorted(PRESETS)
    for model, row in rows.items():
        totals = GOLDENS[model]["catalogue"]
        assert row["window_bytes_per_token"] == totals["window_bytes_per_token"]
        assert row["checkpoint_bytes"] == totals["state_bytes"]
        if "indexer" not in str(row["layers"]):
            assert row["bytes_per_token"] == totals["bytes_per_token"]
        line = next(line.split() for line in printed.splitlines() if line.split()[:1] == [model])
        assert line[1] == row["family"]
        assert f"{row['bytes_per_token']:,}" in line
        assert line[-1] == row["namespace"]


@pytest.mark.slow
def test_under_the_other_convention_index_keys_have_the_catalogues_bytes_too(table):
    rows, _ = table("engine=transformers")
    for model, row in rows.items():
        assert row["bytes_per_token"] == GOLDENS[model]["catalogue"]["bytes_per_token"]


def test_a_line_is_what_the_preset_is_when_planned_alone(table):
    rows, _ = table()
    for model in ("deepseek_v4_flash", "qwen3_5_27b", "mamba2_2_7b"):
        alone = summary(stack_config(model))
        assert rows[model] == {"family": rows[model]["family"], **alone}


def test_overrides_hold_for_every_preset_and_one_that_does_not_take_them_says_why(table):
    rows, printed = table("page_size=64", code=1)
    wrong = {model for model, row in rows.items() if "error" in row}
    assert wrong == {"deepseek_v4_flash", "deepseek_v4_pro"}
    assert all("64 is no multiple of 128" in rows[model]["error"] for model in wrong)
    assert "64 is no multiple of 128" in printed
    assert rows["glm_5_3_flash"]["page_size"] == 64


@pytest.mark.slow
def test_a_users_own_presets_are_in_the_table(table, presets):
    rows, _ = table(f"--config-dir={presets.folder}")
    assert rows["tiny"]["family"] == "tiny"
    assert rows["tiny"]["layers"] == {"kv": 4, "indexer": 2}
    assert len(rows) == 50


def test_all_is_a_word_of_the_command_only():
    with pytest.raises(ConfigError, match="only the command plans all presets"):
        run(to_cli_config(load_config("all")), Params())
