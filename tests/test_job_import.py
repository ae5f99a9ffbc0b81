"""job=import: the preset it writes is one, holds facts only, and is never written over another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from composer.config import load_config, load_stack_config, to_cli_config, to_stack_config
from composer.errors import ConfigError
from composer.jobs.import_ import Params, run
from composer.plan import make_plan
from composer.resolve import resolve
from tests.model_configs import ENGINES, PRESETS, stack_config

FILES = Path(__file__).parent / "hf_configs"


def planned(config):
    config.backend = {"name": "memory"}
    config.host.memory = config.device.memory = "64GiB"
    return make_plan(config, resolve(config))


def write(folder, model, *overrides):
    """Import a config.json as ``mine``; returns the preset file."""
    path = folder / "model" / "mine.yaml"
    request = [f"hf_config={FILES / model}.json", "host.memory=64GiB", "device.memory=64GiB"]
    run(to_cli_config(load_config(overrides=[*request, *overrides])), Params(str(path)))
    return path


@pytest.mark.parametrize("model", PRESETS)
def test_the_written_preset_is_the_shipped_one_with_no_more_facts_than_it_needs(tmp_path, model):
    shipped = stack_config(model)
    facts = yaml.safe_load(write(tmp_path, model, f"model.name={shipped.model.name}").read_text())
    file = json.loads((FILES / f"{model}.json").read_text())
    assert set(facts) == {"defaults", "model", "config"}
    assert _within(facts["config"], file)
    loaded = load_config("mine", extra_dirs=[tmp_path])
    for engine in ENGINES:
        loaded.engine = engine
        mine, theirs = planned(to_stack_config(loaded)), planned(stack_config(model, engine))
        assert mine.spec == theirs.spec
        assert mine.namespace == theirs.namespace


def _within(part, whole):
    """Whether every value of a nested mapping stands at the same place in another one."""
    return all(
        _within(value, whole[key]) if isinstance(value, dict) else value == whole[key]
        for key, value in part.items()
    )


def test_fields_that_no_pool_reads_are_left_out(tmp_path):
    facts = yaml.safe_load(write(tmp_path, "glm_5").read_text())["config"]
    assert facts.keys() & {"vocab_size", "head_dim", "q_lora_rank", "index_topk"} == set()
    assert facts["kv_lora_rank"] == 512
    assert facts["model_type"] == "glm_moe_dsa"


def test_a_preset_says_where_it_comes_from(tmp_path):
    text = write(tmp_path, "qwen3_8b").read_text()
    assert text.startswith("# @package _global_\n")
    digest = hashlib.sha256((FILES / "qwen3_8b.json").read_bytes()).hexdigest()
    assert yaml.safe_load(text)["model"] == {
        "name": "qwen3_8b",
        "source": f"config.json at {FILES / 'qwen3_8b.json'}, SHA-256 {digest}",
    }


def test_settings_of_the_command_stay_out_of_the_preset(tmp_path):
    path = write(tmp_path, "qwen3_8b", "page_size=32", "engine=transformers", "deployment=x")
    config = load_stack_config("mine", extra_dirs=[path.parents[1]])
    assert (config.page_size, config.engine, config.deployment) == (64, "sglang", "")


def test_a_family_chosen_by_hand_is_that_of_the_preset(tmp_path):
    path = write(tmp_path, "deepseek_v3_2", "hf_family=mla_dsa_fp8")
    assert yaml.safe_load(path.read_text())["defaults"] == ["/family/mla_dsa_fp8@_here_", "_self_"]


def test_nothing_is_written_over_a_file_unless_it_is_forced(kvpool):
    command = ["job=import", f"hf_config={FILES / 'qwen3_8b.json'}", "job.out=model/mine.yaml"]
    assert kvpool(*command).code == 0
    before = Path("model/mine.yaml").read_text()
    command[1] = f"hf_config={FILES / 'lfm2_1_2b.json'}"
    ended = kvpool(*command)
    assert ended.code == 2
    assert "'model/mine.yaml' is there already. job.force=true replaces it" in ended.err
    assert Path("model/mine.yaml").read_text() == before
    assert kvpool(*command, "job.force=true").code == 0
    assert "mha_short_conv" in Path("model/mine.yaml").read_text()
    assert [path.name for path in Path("model").iterdir()] == ["mine.yaml"]


def test_the_command_prints_what_it_wrote_how_to_use_it_and_the_plan(kvpool):
    path = FILES / "qwen3_next_80b.json"
    ended = kvpool("job=import", f"hf_config={path}", "job.out=model/mine.yaml", "json=out.json")
    assert (ended.code, ended.err) == (0, "")
    first, second, *rest = ended.out.splitlines()
    assert first.startswith("model/mine.yaml: family mha_gdn, fields architectures, ")
    assert "linear_num_key_heads" in first
    assert second == f"Use it: kvpool --config-dir={Path.cwd()} model=mine"
    assert any(line.split()[:2] == ["linear", "36"] for line in rest)
    data = json.loads(Path("out.json").read_text())
    assert data["written"] == "model/mine.yaml"
    assert data["preset"]["config"]["full_attention_interval"] == 4
    assert data["plan"]["pools"]["kv"]["bytes_per_token"] == 24_576
    used = kvpool(f"--config-dir={Path.cwd()}", "model=mine", "json=plan.json")
    assert (used.code, used.err) == (0, "")
    assert json.loads(Path("plan.json").read_text())["pools"] == data["plan"]["pools"]


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (None, "job.out: has no value, and needs one"),
        ("model/mine.yml", "job.out: 'model/mine.yml' does not end in .yaml"),
        ("no/such/mine.yaml", "job.out: there is no folder 'no'"),
    ],
)
def test_a_preset_needs_a_file_to_be_written_to(out, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = to_cli_config(load_config(overrides=[f"hf_config={FILES / 'qwen3_8b.json'}"]))
    with pytest.raises(ConfigError) as caught:
        run(config, Params(out))
    assert str(caught.value).startswith(reason)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_one_message(tmp_path):
    (tmp_path / "model").write_text("a file")
    config = to_cli_config(load_config(overrides=[f"hf_config={FILES / 'qwen3_8b.json'}"]))
    with pytest.raises(ConfigError, match=r"job\.out: cannot write"):
        run(config, Params(str(tmp_path / "model" / "mine.yaml")))


def test_without_a_config_file_there_is_nothing_to_import(tmp_path):
    with pytest.raises(ConfigError, match="hf_config: has no value"):
        run(to_cli_config(load_config()), Params(str(tmp_path / "mine.yaml")))


def test_what_does_not_compose_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match="page_size 48 is no multiple"):
        write(tmp_path, "deepseek_v4_pro", "page_size=48")
    assert list(tmp_path.iterdir()) == []


def test_an_imported_preset_can_be_extended(tmp_path):
    write(tmp_path, "qwen3_8b")
    text = "# @package _global_\ndefaults: [/model/mine@_here_, _self_]\nmodel: {name: other}\n"
    (tmp_path / "model" / "child.yaml").write_text(text)
    child = asdict(load_stack_config("child", extra_dirs=[tmp_path]))
    mine = asdict(load_stack_config("mine", extra_dirs=[tmp_path]))
    assert child | {"model": mine["model"]} == mine
