"""An engine's tensors against the schema: coverage, shapes, dtypes, device, slots."""

from dataclasses import replace

import pytest
import torch

from composer.device_buffers import check_device_buffers
from composer.device_pools import DevicePoolGroup
from composer.errors import ConfigError
from tests.pools import PAGE_SIZE, buffer, follows, hybrid, model, plan_of, pool

SLOTS = 6


def tensors(spec, per_layer=False, num_slots=SLOTS, device="cpu"):
    made = {}
    for one in spec.pools:
        rows = num_slots * one.rows_per_page
        made[one.name] = {}
        for part in one.buffers:
            shape = (len(one.layers), rows, *part.shape)
            whole = torch.zeros(shape, dtype=getattr(torch, part.dtype), device=device)
            made[one.name][part.name] = list(whole.unbind(0)) if per_layer else whole
    return made


def problems(spec, buffers, device="cpu"):
    with pytest.raises(ConfigError) as error:
        check_device_buffers(spec, buffers, device)
    return [str(problem).removeprefix("device_buffers.") for problem in error.value.problems]


def small():
    return model(
        pool("kv", buffer("latent", 8), layers=(0, 1)),
        follows("kv", "index", buffer("key", 5, dtype="uint8"), layers=(1,)),
    )


@pytest.mark.parametrize("per_layer", [False, True])
def test_what_the_schema_says_passes_and_its_slots_are_counted(per_layer):
    spec = hybrid()
    found = check_device_buffers(spec, tensors(spec, per_layer), "cpu")
    assert found == {"kv": SLOTS, "window": SLOTS, "linear": SLOTS}


def test_rows_that_fill_no_page_are_left_over():
    spec, made = small(), tensors(small())
    made["kv"]["latent"] = torch.zeros(2, SLOTS * PAGE_SIZE + 3, 8, dtype=torch.bfloat16)
    assert check_device_buffers(spec, made, "cpu") == {"kv": SLOTS}


def test_a_buffer_that_the_schema_does_not_name_is_refused_by_name():
    made = tensors(small())
    made["kv"]["index_k"] = torch.zeros(2, SLOTS * PAGE_SIZE, 4)
    (problem,) = problems(small(), made)
    assert problem.startswith("kv.index_k: the schema's pool 'kv' does not claim it")
    assert "pools.kv.exclude" in problem


def test_an_excluded_buffer_passes():
    kv, index = small().pools
    spec = model(replace(kv, exclude={"scratch": "rebuilt by the engine"}), index)
    made = tensors(spec)
    made["kv"]["scratch"] = torch.zeros(1)
    assert check_device_buffers(spec, made, "cpu") == {"kv": SLOTS}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.pop("index"), "index.key: is missing"),
        (lambda made: made["kv"].pop("latent"), "kv.latent: is missing"),
        (lambda made: made.update(indexer=made["index"]), "indexer: no pool of the schema claims"),
        (
            lambda made: made["kv"].update(latent=torch.zeros(2, 24, 9, dtype=torch.bfloat16)),
            "kv.latent: has rows of shape (9,), the schema (8,)",
        ),
        (
            lambda made: made["kv"].update(latent=torch.zeros(2, 24, 2, 4, dtype=torch.bfloat16)),
            "kv.latent: has rows of shape (2, 4)",
        ),
        (
            lambda made: made["kv"].update(latent=torch.zeros(2, 24, 8, dtype=torch.float16)),
            "kv.latent: is torch.float16, the schema says bfloat16",
        ),
        (
            lambda made: made["kv"].update(latent=torch.zeros(3, 24, 8, dtype=torch.bfloat16)),
            "kv.latent: has 3 layers, the schema 2",
        ),
        (
            lambda made: made["kv"].update(latent=made["kv"]["latent"][0]),
            "kv.latent: has",
        ),
        (
            lambda made: made["kv"].update(latent=torch.zeros(8, dtype=torch.bfloat16)),
            "kv.latent: has tensors of [1] axes",
        ),
        (
            lambda made: made["kv"].update(latent=torch.zeros((), dtype=torch.bfloat16)),
            "kv.latent: has tensors of [0] axes",
        ),
        (
            lambda made: made["kv"].update(latent=[]),
            "kv.latent: has 0 layers, the schema 2",
        ),
        (
            lambda made: made["kv"].update(latent=[made["kv"]["latent"][0], torch.zeros(8)]),
            "kv.latent: has",
        ),
        (
            lambda made: made["kv"].update(
                latent=[torch.zeros(rows, 8, dtype=torch.bfloat16) for rows in (24, 20)]
            ),
            "kv.latent: has layers of [20, 24] rows",
        ),
        (
            lambda made: made["kv"].update(
                latent=torch.zeros(2, 24, 16, dtype=torch.bfloat16)[..., ::2]
            ),
            "kv.latent: has rows that are not contiguous",
        ),
        (
            lambda made: made["kv"].update(
                latent=torch.zeros(2, 24, 8, dtype=torch.bfloat16, device="meta")
            ),
            "kv.latent: lies on meta, and device.name is cpu",
        ),
    ],
)
def test_a_mistake_is_named_with_its_buffer(change, message):
    made = tensors(small())
    change(made)
    found = problems(small(), made)
    assert any(problem.startswith(message) for problem in found), found


def test_another_device_of_the_same_kind_is_refused_where_one_is_named():
    made = tensors(small(), device="meta")
    for name in ("meta", "meta:0"):
        assert check_device_buffers(small(), made, name) == {"kv": SLOTS}
    found = problems(small(), made, "meta:1")
    assert [problem.endswith("lies on meta, and device.name is meta:1") for problem in found] == [
        True,
        True,
    ]


def test_pools_of_one_index_space_hold_the_same_slots():
    made = tensors(small())
    made["index"]["key"] = torch.zeros(1, 5 * PAGE_SIZE, 5, dtype=torch.uint8)
    (problem,) = problems(small(), made)
    assert "the slots of index space kv differ" in problem
    assert "kv.latent 6" in problem
    assert "index.key 5" in problem


def test_tensors_that_hold_not_one_page_are_refused():
    (problem,) = problems(small(), tensors(small(), num_slots=0))
    assert "kv holds not one slot" in problem


def test_all_mistakes_are_told_at_once():
    spec, made = hybrid(), tensors(hybrid())
    made["kv"]["scale"] = torch.zeros(1)
    made["kv"]["k"] = torch.zeros(3, 24, 3, 12)
    del made["linear"]["conv"], made["index"]
    made["other"] = {}
    found = "\n".join(problems(spec, made))
    for key in ("kv.scale", "kv.k: is torch.float32", "linear.conv", "index.key", "other"):
        assert key in found


def test_a_stage_that_owns_no_layer_of_a_pool_needs_no_tensor_for_it():
    kv, index = small().pools
    spec = model(kv, replace(index, layers=()))
    without = {"kv": tensors(spec)["kv"]}
    for given in ({}, {"index": {"key": []}}, {"index": {"key": tensors(spec)["index"]["key"]}}):
        made = {**without, **given}
        assert check_device_buffers(spec, made, "cpu") == {"kv": SLOTS}
        assert DevicePoolGroup(plan_of(spec), buffers=made).entries["index"].buffers == {}
    made = {**without, "index": {"key": torch.zeros(1, 24, 5, dtype=torch.uint8)}}
    assert "has 1 layers, the schema 0" in problems(spec, made)[0]


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_rows_of_one_number_may_have_any_stride(dtype):
    spec = model(pool("kv", buffer("scale", 1, dtype=dtype), layers=(0, 1)))
    whole = torch.zeros(1, 2, SLOTS * PAGE_SIZE, dtype=getattr(torch, dtype)).permute(1, 2, 0)
    made = {"kv": {"scale": whole}}
    assert check_device_buffers(spec, made, "cpu") == {"kv": SLOTS}
    (view,) = DevicePoolGroup(plan_of(spec), buffers=made).entries["kv"].buffers["scale"].layers
    view[1, 2, 3] = 1
    assert whole.count_nonzero() == 1
    assert whole[1, 11, 0] != 0
