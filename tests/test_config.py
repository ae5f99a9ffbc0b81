"""load_config and to_stack_config: what a valid configuration becomes."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from enum import Enum
from importlib import resources

import pytest
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError

from composer.config import load_config, load_stack_config, to_cli_config, to_stack_config
from composer.config_overlay import AXES, ENGINES, layout_presets
from composer.schema import CliConfig, PoolHitPolicy, StackConfig, Unit
from composer.typed import field_types

PRESETS = sorted(
    file.name.removesuffix(".yaml")
    for file in resources.files("composer.conf").joinpath("model").iterdir()
)
CLI_ONLY = field_types(CliConfig).keys() - field_types(StackConfig).keys()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads_for_every_engine(preset):
    config = load_config(preset)
    for engine in ENGINES:
        config.engine = engine
        assert None not in to_stack_config(config).pools.values()


def test_the_root_chooses_what_the_command_starts_from():
    config = to_cli_config(load_config())
    assert (config.backend["name"], config.policy.name.name) == ("mooncake", "write_through")
    assert (config.job, config.trace["format"]) == ({"name": "plan"}, "auto")
    assert config.layout.axes == ["page", "buffer", "layer", "token", "head"]
    assert (config.parallel.tp.size, config.engine) == (1, "sglang")


def test_a_config_is_resolved_whole_and_without_hydras_own_node(presets):
    config = load_config("tiny", ["checkpoint_tokens=${page_size}"], extra_dirs=[presets.folder])
    assert isinstance(config, DictConfig)
    assert list(config) == list(field_types(CliConfig))
    assert config.pools.kv.required is True  # a default of the schema
    assert OmegaConf.to_container(config, resolve=False)["checkpoint_tokens"] == 64
    with pytest.raises(ConfigAttributeError):
        config.page_sise = 3


def test_plain_dataclasses_come_out_with_enums_and_without_omegaconf(presets):
    config = to_stack_config(load_config("tiny", extra_dirs=[presets.folder]))
    assert type(config) is StackConfig
    assert config.pools["indexer"].unit is Unit.page
    assert config.pools["kv"].hit_policy is PoolHitPolicy.all_pages
    assert config.pools["kv"].buffers["latent"].shape == ["kv_lora_rank"]
    _assert_plain(config)


def _assert_plain(value):
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        for key, below in value.items():
            assert type(key) is str
            _assert_plain(below)
    elif isinstance(value, list):
        for below in value:
            _assert_plain(below)
    else:
        assert value is None or isinstance(value, Enum) or type(value) in (str, int, float, bool)


def test_a_config_may_be_changed_after_loading_and_is_checked_again(presets):
    config = load_config("tiny", extra_dirs=[presets.folder])
    config.page_size = 32
    assert to_stack_config(config).page_size == 32


def test_loading_in_one_step_gives_the_same(presets):
    request = ("tiny", ["engine=transformers", "page_size=32"])
    loaded = load_config(*request, extra_dirs=[presets.folder])
    assert load_stack_config(*request, extra_dirs=[presets.folder]) == to_stack_config(loaded)


def test_a_stack_config_goes_through_unchanged(presets):
    once = to_stack_config(load_config("tiny", extra_dirs=[presets.folder]))
    assert asdict(to_stack_config(once)) == asdict(once)


def test_a_users_folder_wins_over_ours_and_may_extend_our_presets(presets):
    presets.write("layout/mine.yaml", "axes: [head, token, page, layer, buffer]\n")
    presets.write_model("mine", "page_size: 128\n")
    config = load_config("mine", ["layout=mine"], extra_dirs=[presets.folder])
    stack = to_stack_config(config)
    assert (stack.page_size, stack.layout.axes[0]) == (128, "head")
    assert list(stack.pools) == ["kv", "indexer"]


def test_another_root_may_come_from_a_users_folder(presets):
    presets.write("lab.yaml", "defaults: [config, _self_]\ncheckpoint_tokens: 4096\n")
    config = load_config("tiny", config_name="lab", extra_dirs=[presets.folder])
    assert to_stack_config(config).checkpoint_tokens == 4096


def test_a_root_may_configure_hydra_which_only_the_command_reads(presets):
    presets.write(
        "lab.yaml",
        "defaults: [config, _self_, override hydra/job_logging: none]\n"
        "hydra: {job: {name: lab}}\npage_size: 32\n",
    )
    overrides = ["hydra.verbose=true", "hydra/launcher=basic"]
    config = load_config("tiny", overrides, config_name="lab", extra_dirs=[presets.folder])
    assert config.page_size == 32


def test_an_engine_lays_its_convention_over_the_family(presets):
    overrides = ["engine=transformers"]
    config = to_stack_config(load_config("tiny", overrides, extra_dirs=[presets.folder]))
    indexer = config.pools["indexer"]
    assert indexer.unit is Unit.token
    assert indexer.buffers["key"].shape == [4]
    assert indexer.buffers["key"].dtype == "uint8"  # where the overlay is silent, the family speaks
    assert indexer.buffers["scale"].dtype == "float32"
    assert config.dtypes == {"kv_dtype": "float16"}
    assert "absent" not in config.pools


def test_an_engine_that_a_family_does_not_mention_changes_nothing(presets):
    presets.write_model("plain", "engines: {transformers: {pools: {}}}\n")
    laid = load_config("plain", ["engine=sglang"], extra_dirs=[presets.folder])
    assert to_stack_config(laid).pools["indexer"].unit is Unit.page


def test_an_engines_null_removes_a_pool_a_buffer_or_a_split(presets):
    presets.write_model(
        "mine",
        "pools: {kv: {buffers: {latent: {split: {axis: 0}}}}}\n"
        "engines: {mine: {pools: {indexer: null, kv: {buffers: {latent: {split: null}}}}}}\n",
    )
    both = [
        to_stack_config(load_config("mine", overrides, extra_dirs=[presets.folder]))
        for overrides in ([], ["engine=mine"])
    ]
    assert [list(config.pools) for config in both] == [["kv", "indexer"], ["kv"]]
    assert both[0].pools["kv"].buffers["latent"].split.axis == 0
    assert both[1].pools["kv"].buffers["latent"].split is None


def test_a_childs_null_removes_an_inherited_pool_or_buffer(presets):
    presets.write_model("less", "pools: {indexer: null}\n")
    presets.write_model("bare", "pools: {kv: {buffers: {latent: null}}}\n")
    less = to_stack_config(load_config("less", extra_dirs=[presets.folder]))
    bare = to_stack_config(load_config("bare", extra_dirs=[presets.folder]))
    assert list(less.pools) == ["kv"]
    assert bare.pools["kv"].buffers == {}


@pytest.mark.parametrize("name", sorted(layout_presets()))
def test_a_pools_layout_may_name_a_preset(presets, name):
    overrides = [f"pools.kv.layout={name}"]
    config = to_stack_config(load_config("tiny", overrides, extra_dirs=[presets.folder]))
    assert config.pools["kv"].layout == list(layout_presets()[name])
    assert sorted(config.pools["kv"].layout) == sorted(AXES)
    assert config.pools["indexer"].layout is None


def test_a_pools_layout_may_be_a_list(presets):
    overrides = ["pools.kv.layout=[page,layer,buffer,head,token]"]
    config = to_stack_config(load_config("tiny", overrides, extra_dirs=[presets.folder]))
    assert config.pools["kv"].layout == ["page", "layer", "buffer", "head", "token"]


def test_an_override_may_add_a_pool(presets):
    added = "+pools.ring={unit: page, buffers: {k: {shape: [4], dtype: uint8}}}"
    pools = to_stack_config(load_config("tiny", [added], extra_dirs=[presets.folder])).pools
    assert list(pools) == ["kv", "indexer", "ring"]
    assert pools["ring"].unit is Unit.page


def test_a_dimension_may_be_a_number_or_an_expression(presets):
    overrides = ["pools.kv.tokens_per_row=4", "pools.kv.window_tokens=page_size * 2"]
    pool = to_stack_config(load_config("tiny", overrides, extra_dirs=[presets.folder])).pools["kv"]
    assert (pool.tokens_per_row, pool.window_tokens) == (4, "page_size * 2")


def test_a_hosts_plain_mapping_is_typed_too(presets):
    plain = OmegaConf.to_container(load_config("tiny", extra_dirs=[presets.folder]))
    stack = {key: value for key, value in plain.items() if key not in CLI_ONLY}
    assert to_stack_config(OmegaConf.create(stack)).pools["indexer"].unit is Unit.page
