"""What a user may get wrong: one message, exit code 2, and nothing left behind."""

from __future__ import annotations

import socket
import sys
import time

import psutil
import pytest
import torch

from composer.errors import ConfigError
from composer.stack import compose
from composer.stack_plan import plan_stack

SMALL = ["layers_per_pool=2", "page_size=16", "host.memory=16MiB", "device.memory=16MiB"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=deepseek_v33"], ["model", "deepseek_v3"]),
        (["pools.indexer.unitt=page"], ["pools.indexer.unitt", "Did you mean 'unit'"]),
        (["+pools.kv.buffers.latent.shap=[1]"], ["shap", "Did you mean 'shape'"]),
        (["page_size=many"], ["override 'page_size=many'", "page_size"]),
        (["pools.indexer.indices_from_pool=kvv"], ["indices_from_pool", "'kvv'", "kv"]),
        (["pools.indexer.indices_from_pool=indexer"], ["indices_from_pool", "itself"]),
        (["page_size=0"], ["page_size"]),
        (["model=deepseek_v4_flash", "page_size=100"], ["page_size", "128"]),
        (["host.memory=1MiB"], ["host.memory", "not one page", "5,012,800"]),
        (["device.memory=1MiB"], ["device.memory", "not one page", "5,012,736"]),
        (["host.memory=lots"], ["host.memory", "8GiB"]),
        (["layout.axes=[page,token,buffer,layer,head]"], ["kv.latent", "indexer.key"]),
        (["layout.axes=[page,page,buffer,layer,head]"], ["layout.axes", "token"]),
        (["parallel.tp.rank=2", "parallel.tp.size=2"], ["parallel.tp.rank"]),
        (
            ["pools.kv.hit_policy=trailing_pages"],
            ["pools.kv.window_tokens", "trailing_pages needs it"],
        ),
        (["storage.verify=never"], ["storage.verify", "checksum"]),
    ],
)
def test_a_mistake_is_one_message_and_leaves_nothing(kvpool, tmp_path, arguments, words):
    ended = kvpool(*arguments)

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("kvpool: error: ")
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err
    assert not list((tmp_path / "cwd").iterdir())


def test_a_cycle_of_index_sources_names_its_pools(kvpool):
    ended = kvpool("pools.kv.indices_from_pool=indexer", "anchor=null")

    assert ended.code == 2
    assert "cycle" in ended.err


def test_all_mistakes_come_at_once(kvpool):
    ended = kvpool("page_size=many", "host.memroy=1GiB", "model=qwen3_next_80b")

    assert ended.code == 2
    assert "2 errors" in ended.err
    assert "host.memroy" in ended.err
    assert "page_size" in ended.err


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.mooncake
def test_a_master_where_nobody_listens_is_told_within_10_s(kvpool):
    address = f"127.0.0.1:{closed_port()}"
    start = time.monotonic()
    ended = kvpool("job=replay", *SMALL, f"backend.address='{address}'")

    assert ended.code == 2
    assert address in ended.err
    assert time.monotonic() - start < 10
    assert not [child for child in psutil.Process().children() if "mooncake" in child.name()]


def test_a_missing_mooncake_names_the_package_to_install(kvpool, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "mooncake"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mooncake", None)
    ended = kvpool("job=replay", *SMALL)

    assert ended.code == 2
    assert "mooncake-transfer-engine" in ended.err


def device_buffers(**changed):
    sizes = [*SMALL, "host.memory=64MiB", "device.memory=64MiB"]
    _, plan = plan_stack("qwen3_next_80b", sizes)
    buffers = {
        pool.name: {
            buffer.name: torch.zeros(
                (len(pool.layers), 8 * pool.rows_per_page, *buffer.shape),
                dtype=getattr(torch, buffer.dtype),
            )
            for buffer in pool.buffers
        }
        for pool in plan.spec.pools
    }
    for key, tensor in changed.items():
        pool, _, buffer = key.partition("_")
        if tensor is None:
            del buffers[pool][buffer]
        else:
            buffers[pool][buffer] = tensor
    return buffers


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kv_v": None}, ["device_buffers.kv.v", "is missing"]),
        ({"kv_scale": torch.zeros(2, 8)}, ["device_buffers.kv.scale", "does not claim"]),
        ({"kv_k": torch.zeros(2, 128, 2, 64, dtype=torch.bfloat16)}, ["kv.k", "(2, 64)"]),
        ({"kv_k": torch.zeros(2, 128, 2, 256)}, ["kv.k", "float32", "bfloat16"]),
        ({"kv_k": torch.zeros(3, 128, 2, 256, dtype=torch.bfloat16)}, ["kv.k", "3 layers"]),
    ],
)
def test_device_buffers_that_do_not_fit_the_schema_are_refused(changed, words):
    overrides = [*SMALL, "host.memory=64MiB", "backend=memory"]
    with pytest.raises(ConfigError) as raised:
        compose("qwen3_next_80b", overrides, device_buffers(**changed))

    for word in words:
        assert word in str(raised.value)


def test_device_buffers_that_fit_are_used_as_they_are_whatever_the_budget():
    overrides = [*SMALL, "host.memory=64MiB", "device.memory=1KiB", "backend=memory"]
    buffers = device_buffers()
    with compose("qwen3_next_80b", overrides, buffers) as stack:
        assert stack.device.tensors is buffers
        assert {name: one.num_device_slots for name, one in stack.plan.spaces.items()} == {
            "kv": 8,
            "linear": 8,
        }
