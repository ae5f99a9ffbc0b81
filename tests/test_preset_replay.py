"""Every preset serves: two requests, the second from what the first has left in storage."""

from __future__ import annotations

import numpy as np
import pytest

from composer.backends.memory import MemoryBackend
from composer.jobs.replay_driver import Driver
from composer.resolve import resolve
from composer.stack import compose
from tests.model_configs import PRESETS, stack_config

NUM_CHECKPOINTS = 10  # room in either tier: more than two requests leave
# One preset of each family, and of each way to choose layers, under the other convention too.
SPREAD = (
    "bamba_9b", "deepseek_v3", "deepseek_v3_2", "deepseek_v4_flash", "falcon_h1_34b", "gemma3_27b",
    "glm_5_2", "glm_5_3_flash", "jamba_v0_1", "kimi_linear_48b", "lfm2_1_2b", "llama3_1_8b",
    "mamba2_2_7b", "minimax_m3", "minimax_text_01", "nemotron_3_nano_30b", "qwen3_5_9b",
    "zamba2_7b",
)  # fmt: skip


def small(model, engine="sglang"):
    """Two layers of every pool, pages as small as the family has them, and room for both tiers."""
    config = stack_config(model, engine)
    config.layers_per_pool = 2
    config.backend = {"name": "memory"}
    if config.page_size == 64:
        config.page_size = 16
    config.checkpoint_tokens = 2 * config.page_size
    spec = resolve(config)
    unit = 0
    for name, pools in spec.spaces.items():
        pages = 1 if spec.is_state(name) else 2
        if spec.is_trailing(name) and not spec.is_state(name):
            pages = spec.window_pages(pools)
        unit += sum(pool.page_bytes + 128 for pool in pools) * pages
    config.host.memory = config.device.memory = str(NUM_CHECKPOINTS * unit)
    return config


def served(config, tokens, stored):
    """What a stack of its own saw while it served one request; ``stored`` outlives it."""
    backend = MemoryBackend()
    backend._objects.update(stored)
    with compose(config, backend=backend, poison=True) as stack:
        driver = Driver(stack)
        driver.serve(tokens)
        assert stack.publish(wait_s=30).pages_unsaved == 0
        stored.update(backend._objects)
        return driver.tally


def replay(config):
    page = config.page_size
    prompt = np.random.default_rng(0).integers(0, 2**31 - 1, 6 * page + 3)
    stored: dict[str, bytes] = {}
    first = served(config, prompt[: 4 * page], stored)
    second = served(config, prompt, stored)
    assert (first.mismatches, second.mismatches) == (0, 0), second.details
    assert (first.unserved, second.unserved) == (0, 0)
    assert first.hit_tokens.total() == 0
    assert second.hit_tokens["storage"] == 4 * page
    assert second.pages_verified + second.states_verified > 0
    return second


@pytest.mark.parametrize("model", PRESETS)
def test_a_preset_replays_two_requests_without_a_wrong_byte(model):
    replay(small(model))


@pytest.mark.parametrize("model", SPREAD)
def test_a_family_replays_under_the_other_convention_too(model):
    replay(small(model, "transformers"))


def test_a_replay_sees_a_byte_that_is_wrong(monkeypatch):
    monkeypatch.setattr("composer.jobs.pattern.PagePattern.fill", lambda *_: None)
    with pytest.raises(AssertionError, match="in device slot"):
        replay(small("llama3_1_8b"))
