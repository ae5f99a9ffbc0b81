"""Hosts that load configurations of ours: their own state stays as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from composer.config import load_config, to_stack_config
from composer.schema import StackConfig

ROOT = Path(__file__).parents[1]
HOSTS = Path(__file__).parent / "hosts"
POOLS = ["draft_indexer", "draft_kv", "indexer", "kv"]


@pytest.fixture
def run_host(tmp_path):
    """Runs a host in an empty directory; its last line, and what it left behind."""

    def run_host(script: str, *arguments: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        command = [sys.executable, str(HOSTS / script), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert list(tmp_path.iterdir()) == []
        return json.loads(done.stdout.splitlines()[-1])

    return run_host


MEMORY = [
    "kvpool/backend@serving.pools.backend=memory",
    "serving.pools.layers_per_pool=2",
    "serving.pools.host.memory=64MiB",
    "serving.pools.device.memory=64MiB",
]
QUIET = ["hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=stdout"]


def test_a_hydra_host_mounts_a_stack_beside_groups_named_like_ours(run_host):
    seen = run_host("hydra_host/app.py", *QUIET, *MEMORY)
    assert seen["pools"] == POOLS
    assert seen["model"] == "deepseek-ai/DeepSeek-V3.2"
    assert (seen["page_size"], seen["backend"]["name"]) == (128, "memory")
    assert seen["served"] == [0, 256]
    assert seen["host"] == ["llama-of-the-host", "vllm"]


def test_a_hydra_host_loads_in_threads_and_keeps_its_state(run_host):
    overrides = [
        "kvpool/backend@serving.pools.backend=file",
        "kvpool/layout@serving.pools.layout=layer_first",
        "serving.pools.backend.fsync=true",
    ]
    seen = run_host("hydra_host/app.py", *QUIET, *MEMORY[1:], *overrides)
    assert (seen["errors"], seen["found"]) == ([], [True] * 8)
    assert seen["unchanged"]
    chosen = {"name": "file", "path": None, "fsync": True}
    assert seen["backend"].items() >= chosen.items()
    assert seen["layout"][0] == "buffer"


def test_a_host_with_argparse_and_threads_loads_in_each_and_keeps_its_state(run_host):
    seen = run_host("threads_host.py", "--model", "deepseek_v3_2")
    assert seen == {"sizes": list(range(1, 9)), "unchanged": True, "hydra_used": False}


def test_configs_go_to_spawned_workers_and_workers_load_their_own(run_host):
    assert run_host("spawn_host.py") == [[True, POOLS, 128, 256]] * 2


@pytest.fixture
def host_config(hydra_untouched):
    """Composes the Hydra host's config in this process."""
    with initialize_config_dir(str(HOSTS / "hydra_host" / "conf"), version_base="1.3"):
        yield lambda *overrides: compose("config", overrides=list(overrides))


@pytest.mark.parametrize("preset", ["deepseek_v3_2", "qwen3_next_80b", "deepseek_v4_flash"])
def test_a_mounted_stack_equals_the_one_that_is_loaded(host_config, preset):
    mounted = host_config(f"kvpool@serving.pools={preset}", "serving.pools.page_size=256").serving
    assert OmegaConf.get_type(mounted.pools) is StackConfig
    loaded = load_config(preset, ["page_size=256"])
    assert to_stack_config(mounted.pools) == to_stack_config(loaded)


def test_a_stack_may_be_mounted_at_any_place_and_more_than_once(host_config):
    config = host_config("+kvpool@prefill.cache=llama3_1_8b", "+kvpool@decode=mamba2_2_7b")
    assert sorted(to_stack_config(config.prefill.cache).pools) == ["draft_kv", "kv"]
    assert list(to_stack_config(config.decode).pools) == ["ssm"]


def test_a_hosts_own_preset_may_extend_ours(host_config, tmp_path, hydra_untouched):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [/kvpool/deepseek_v3_2@_here_, _self_]\npools: {indexer: {required: false}}\n"
    )
    (tmp_path / "root.yaml").write_text("defaults: [mine@cache]\n")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        pools = to_stack_config(compose("root").cache).pools
    assert not pools["indexer"].required
    assert pools["kv"].required


def test_loading_while_a_host_composes_leaves_its_hydra_alone(host_config):
    instance, inner = GlobalHydra.instance(), GlobalHydra.instance().hydra
    load_config("llama3_1_8b")
    assert GlobalHydra.instance() is instance
    assert GlobalHydra.instance().hydra is inner
    assert host_config("port=1").port == 1
