"""Reports from the field about sizes and shapes, each as a preset a user would write."""

from __future__ import annotations

import numpy as np
import pytest

from composer.config import load_stack_config
from composer.errors import ConfigError
from composer.jobs.replay_driver import Driver
from composer.plan import make_plan
from composer.resolve import resolve
from composer.stack import compose
from tests.model_configs import stack_config
from tests.pools import LAYOUTS

HEAD = "# @package _global_\nmodel: {name: report}\n"
STATES = (
    HEAD
    + """\
anchor: kv
num_layers: num_hidden_layers
config: {num_hidden_layers: 4}
page_size: 16
checkpoint_tokens: 64
pools:
  kv:
    layers: [{indices: [0, 2], base: 0}]
    buffers:
      k: {shape: [2, 64], dtype: uint8}
      v: {shape: [1, 64], dtype: uint8}
  slot:
    unit: state
    hit_policy: trailing_pages
    layers: [{complement_of: kv}]
    buffers:
      conv: {shape: [24, 3], dtype: bfloat16}
      temporal: {shape: [4, 8, 8], dtype: float32}
      history: {shape: [2], dtype: int64}
      flags: {shape: [5], dtype: uint8}
"""
)
SMALL = {"host.memory": "64MiB", "device.memory": "32MiB"}
NUM_PAGES = 16


def served_from_storage(config, backend_settings):
    """What a prompt of 16 pages finds when both memories have been emptied behind it."""
    config.backend = backend_settings
    tokens = np.arange(NUM_PAGES * config.page_size) * 7
    with compose(config, poison=True) as stack:
        Driver(stack).serve(tokens)
        published = stack.publish(wait_s=60)
        assert published.pages_unsaved == 0
        stack.cache.tiers.device.clear(None)
        stack.cache.tiers.host.clear(None)
        again = Driver(stack)
        again.serve(tokens)
        assert again.tally.hit_tokens["storage"] == len(tokens)
        moved = [each.num_bytes for each in (stack.controller.written, stack.controller.read)]
        return again.tally, stack.plan, moved


@pytest.fixture
def report(presets):
    """A preset of the text, typed, with little memory."""

    def report(text, *overrides):
        presets.write("model/report.yaml", text)
        small = [f"{key}={value}" for key, value in SMALL.items()]
        return load_stack_config("report", [*small, *overrides], extra_dirs=[presets.folder])

    return report


def test_a3_a_state_of_four_tensors_and_four_dtypes_comes_back_whole(report):
    tally, plan, _ = served_from_storage(report(STATES), {"name": "memory"})
    (slot,) = plan.spec.spaces["slot"]
    assert [buffer.dtype for buffer in slot.buffers] == ["bfloat16", "float32", "int64", "uint8"]
    assert slot.page_bytes == 2 * (24 * 3 * 2 + 4 * 8 * 8 * 4 + 2 * 8 + 5)
    assert (tally.states_verified, tally.mismatches) == (1, 0)


def test_d4_only_layers_that_produce_index_keys_store_any():
    spec = resolve(stack_config("glm_5_2"))
    indexer = spec.pool("indexer")
    assert (len(spec.pool("kv").layers), len(indexer.layers)) == (78, 21)
    assert indexer.page_bytes == 2_772 * spec.page_size
    assert indexer.producers is not None
    assert {indexer.producers[layer] for layer in (3, 4, 5)} == {2}
    assert indexer.producers[77] == 74


def test_d4_the_rule_gives_the_listed_producers():
    config = stack_config("glm_5_2")
    listed = resolve(config).pool("indexer").layers
    del config.config["indexer_types"]
    ruled = resolve(config).pool("indexer")
    assert ruled.layer_rule.startswith("producers freq index_topk_freq")
    assert ruled.layers == listed


def test_d5_a_page_has_the_bytes_of_k_and_of_v_planned_written_and_read(report):
    config = report(STATES, "page_size=64")
    config.pools = {"kv": config.pools["kv"]}  # K of 128 bytes a token and layer, V of 64
    _, plan, moved = served_from_storage(config, {"name": "memory"})
    (arena,) = plan.arenas
    assert arena.payload_bytes == 2 * 64 * 192
    assert moved == [NUM_PAGES * arena.object_bytes] * 2  # written, and read


@pytest.mark.parametrize(
    "backend",
    ["memory", "file", pytest.param("mooncake", marks=pytest.mark.mooncake)],
)
def test_d6_an_anchor_without_buffers_is_served_by_every_backend(backend, tmp_path):
    config = stack_config("deepseek_v4_flash")
    config.layers_per_pool, config.page_size, config.checkpoint_tokens = 1, 128, 2048
    config.host.memory = config.device.memory = "96MiB"
    settings = {"file": {"path": str(tmp_path)}, "mooncake": {"segment": "128MiB"}}
    tally, plan, _ = served_from_storage(config, {"name": backend, **settings.get(backend, {})})
    assert plan.spec.pool("kv").buffers == ()
    assert tally.mismatches == 0
    assert tally.pages_verified > NUM_PAGES


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d7_keys_of_192_and_values_of_128_come_back_in_every_layout(layout):
    config = stack_config("mimo_v2_flash")
    config.layers_per_pool, config.page_size, config.checkpoint_tokens = 2, 16, 128
    config.layout.axes = list(LAYOUTS[layout])
    config.host.memory = config.device.memory = "32MiB"
    tally, plan, _ = served_from_storage(config, {"name": "memory"})
    assert [buffer.shape[-1] for buffer in plan.spec.pool("kv").buffers] == [192, 128]
    assert tally.mismatches == 0


def test_d7_a_layout_that_would_mix_k_and_v_is_refused_and_names_both():
    config = stack_config("mimo_v2_flash")
    config.layout.axes = ["page", "token", "head", "buffer", "layer"]
    config.pools["kv"].buffers["v"].dtype = "float32"
    with pytest.raises(ConfigError) as caught:
        make_plan(config, resolve(config))
    assert "kv.k" in str(caught.value)
    assert "kv.v" in str(caught.value)


def test_d8_a_short_request_takes_one_unit_of_each_pool_and_no_padding_to_a_common_size(report):
    config = report(STATES, "page_size=64", "checkpoint_tokens=512")
    config.backend = {"name": "memory"}
    with compose(config) as stack:
        before = {name: space.num_device_slots for name, space in stack.plan.spaces.items()}
        slots = stack.allocate(1, 1)
        assert slots is not None
        assert {name: len(ids) for name, ids in slots.pages.items()} == {"kv": 1}
        assert [sorted(state) for state in slots.states] == [["slot"]]
        page, state = (stack.plan.spaces[name].device_slot_bytes for name in ("kv", "slot"))
        assert page == 2 * 64 * 192
        assert state < page // 2  # neither is grown to the other's size
        assert all(count > 1 for count in before.values())
        slots.release()
