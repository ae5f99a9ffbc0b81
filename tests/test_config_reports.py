"""Configuration faults that have been reported in the field, I1 to I12: none of them here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from composer.config import load_config, to_cli_config, to_stack_config
from composer.errors import ConfigError
from composer.schema import CliConfig
from composer.typed import field_types, without_none

ROOT = Path(__file__).parents[1]


@pytest.fixture
def load(presets):
    """A stack config of the tiny preset, or of another one in the same folder."""

    def load(*overrides, model="tiny"):
        return to_stack_config(load_config(model, overrides, extra_dirs=[presets.folder]))

    return load


def problem_of(load, *overrides, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, **options)
    (problem,) = caught.value.problems
    return str(problem)


def test_i1_presets_are_found_through_the_package_from_any_directory():
    assert (ROOT / "composer" / "conf" / "config.yaml").is_file()
    code = "from composer import load_config; print(load_config().page_size)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "64")


@pytest.mark.parametrize(
    "value",
    [
        "${hydra:runtime.cwd}",
        "${oc.env:HOME}",
        "${oc.env:NOPE,x}",
        "a-${oc.decode:${oc.env:HOME}}",
        "${${engine}:HOME}",
        "${now:%Y}",
    ],
)
def test_i2_a_preset_that_calls_a_resolver_is_refused(load, presets, value):
    path = presets.write_model("mine", f'deployment: "{value}"\n')
    message = problem_of(load, model="mine")
    assert message.startswith(f"{path}:3: deployment: ")
    assert "calls a resolver" in message


def test_i3_loading_creates_nothing_and_changes_no_directory(load, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o500)
    monkeypatch.chdir(empty)
    load()
    assert Path.cwd() == empty
    assert list(empty.iterdir()) == []


def test_i4_a_misspelt_key_is_refused_behind_a_plus_too(load):
    assert "Did you mean 'page_size'?" in problem_of(load, "pagesize=32")
    assert "Did you mean 'page_size'?" in problem_of(load, "+pagesize=32")
    assert "Did you mean 'page_multiple'?" in problem_of(load, "+pools.kv.page_multipl=32")


def test_i5_pools_of_a_base_and_of_its_child_add_up_in_order(load, presets):
    presets.write_model(
        "mine", "pools: {state: {unit: state, buffers: {s: {shape: [4], dtype: float32}}}}\n"
    )
    presets.write(
        "model/less.yaml",
        "# @package _global_\ndefaults: [/model/mine@_here_, _self_]\npools: {indexer: null}\n",
    )
    assert list(load(model="mine").pools) == ["kv", "indexer", "state"]
    assert list(load(model="less").pools) == ["kv", "state"]


def test_i6_a_part_of_a_config_stands_without_its_root(load, presets):
    presets.write_model(
        "mine",
        "page_size: 32\n"
        'pools: {kv: {window_tokens: "${page_size}", weight: "${...checkpoint_tokens}"}}\n',
    )
    pool = load(model="mine").pools["kv"]
    assert (pool.window_tokens, pool.weight) == (32, 512.0)
    part = load_config("mine", extra_dirs=[presets.folder]).pools.kv
    assert OmegaConf.create(OmegaConf.to_container(part)).window_tokens == 32


@pytest.mark.parametrize("key", ["num_layers", "model.name", "pools.kv.buffers.latent.dtype"])
def test_i7_a_missing_value_is_an_error_that_names_its_key(load, key):
    message = problem_of(load, f"{key}=???")
    assert message == f"override '{key}=???': {key}: has no value, and needs one"


def test_i8_no_config_object_goes_beyond_the_door(load, monkeypatch):
    config = load()

    def fail(self, name):
        raise AssertionError(f"{name} is read from a config object")

    monkeypatch.setattr("omegaconf.DictConfig.__getattr__", fail)
    monkeypatch.setattr("omegaconf.DictConfig.__getitem__", fail)
    assert config.pools["kv"].buffers["latent"].shape[0] == "kv_lora_rank"
    assert asdict(config)["backend"]["name"] == "mooncake"


@pytest.mark.parametrize(
    ("text", "page_size"), [('"64"', 64), ("64", 64), ("1_000", 1000), ("0x40", 64)]
)
def test_i9_numbers_written_as_yaml_allows_are_numbers(load, presets, text, page_size):
    presets.write_model("mine", f"page_size: {text}\n")
    assert load(model="mine").page_size == page_size


@pytest.mark.parametrize("text", ["1e3", "6.4e1", "64.5", '"64 tokens"', "on", "[64]"])
def test_i9_what_is_not_exactly_an_integer_is_refused(load, presets, text):
    path = presets.write_model("mine", f"page_size: {text}\n")
    message = problem_of(load, model="mine")
    assert message.startswith(f"{path}:3: page_size: ")
    assert "is not an integer" in message


@pytest.mark.parametrize(("name", "read"), [("no", False), ("on", True), ("12", 12)])
def test_i9_a_pool_name_that_yaml_reads_as_something_else_is_refused(load, presets, name, read):
    path = presets.write_model("mine", f"pools:\n  {name}: {{unit: page}}\n")
    message = problem_of(load, model="mine")
    assert message.startswith(f"{path}:4: pools.{read}: the name {read} is not text. Quote it")


def test_i9_a_quoted_pool_name_is_a_name(load, presets):
    presets.write_model("mine", 'pools:\n  "no": {unit: page}\n')
    assert list(load(model="mine").pools) == ["kv", "indexer", "no"]


@pytest.mark.parametrize(
    "text",
    [
        "pools: {kv: {TARGET}}",
        "pools: {kv: {buffers: {latent: {split: {TARGET}}}}}",
        "config: {nested: {deeper: [{TARGET}]}}",
        "backend: {TARGET}",
        "engines: {transformers: {pools: {kv: {TARGET}}}}",
    ],
)
def test_i10_an_import_path_is_refused_and_not_run(load, presets, tmp_path, text):
    source, copy = presets.folder / "model" / "tiny.yaml", tmp_path / "copy"
    target = f"_target_: shutil.copyfile, src: {source}, dst: {copy}"
    presets.write_model("mine", text.replace("TARGET", target) + "\n")
    with pytest.raises(ConfigError, match=r"'shutil\.copyfile' is an import path"):
        load(model="mine")
    assert not copy.exists()


def test_i11_what_was_loaded_before_changes_nothing(load, presets):
    presets.write_model("mine", "page_size: 128\npools: {indexer: null}\n")
    first = json.dumps(asdict(load()), default=str)
    load("page_size=32", model="mine")
    with pytest.raises(ConfigError):
        load("pagesize=1")
    assert json.dumps(asdict(load()), default=str) == first


def _settings(cls: type, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """Every scalar setting with a default: its key, the default, and another legal value."""
    for each in fields(cls):
        hint, nullable = without_none(field_types(cls)[each.name])
        key = f"{prefix}{each.name}"
        if is_dataclass(hint):
            yield from _settings(hint, f"{key}.")  # type: ignore[arg-type]
        elif hint is bool:
            yield key, each.default, not each.default
        elif hint is int:
            yield key, each.default, 7 if nullable else int(str(each.default)) + 1
        elif hint is str:
            yield key, each.default, "transformers" if key == "engine" else "other"
        elif isinstance(hint, type) and issubclass(hint, Enum):
            for other in [one for one in hint if one is not each.default][:1]:
                yield key, each.default, other


CHOICES = ("hf_config", "hf_family")  # stand in for a preset: tests/test_import.py
SETTINGS = [each for each in _settings(CliConfig) if each[0] not in CHOICES]


def test_i12_every_setting_that_is_accepted_arrives(presets):
    assert len(SETTINGS) > 25
    overrides = [f"{key}={getattr(value, 'name', value)}" for key, _, value in SETTINGS]
    overrides.append("layout.axes=[head,token,page,layer,buffer]")
    effective = to_cli_config(load_config("tiny", overrides, extra_dirs=[presets.folder]))
    for key, default, value in SETTINGS:
        arrived: object = effective
        for part in key.split("."):
            arrived = getattr(arrived, part)
        assert arrived == value != default, key
    assert effective.layout.axes[0] == "head"
