"""Every family, restored from a real store in another process: the same answers, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer.backends.mooncake_shared import SharedStore
from composer.engines.transformers import compose_for
from tests.hf_engine import Asked, branches, shared
from tests.hf_tiny import MODELS, make, settings

KINDS = {tiny.kind: name for name, tiny in reversed(MODELS.items())}  # the first of each kind
CASES = [
    *((name, "bfloat16") for name in MODELS),
    *((name, "float32") for name in sorted(KINDS.values())),
]
STORE = ["backend=mooncake", "backend.shared=engines", "backend.segment=64MiB"]


def test_there_are_examples_of_many_kinds():
    assert len(MODELS) >= 30
    assert len(KINDS) >= 16


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store that outlives the stacks of both processes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    store = SharedStore("engines", 64 << 20, prepopulate=False)
    yield [*STORE, "backend.prepopulate=false"]
    store.close()


def written(name, dtype, store):
    """Answers without a cache, after what another process restores is written."""
    model = make(name, dtype)
    with compose_for(model, [*settings(name), *store]) as stack:
        asked = Asked(model, stack)
        asked.ask(shared(name))
        assert stack.publish().pages_unsaved == 0
        return [asked.cold(ids) for _, ids in branches(name)]


@pytest.mark.slow
@pytest.mark.mooncake
@pytest.mark.timeout(600)
def test_another_process_answers_from_the_store_what_one_without_a_cache_does(store):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    command = [sys.executable, "-W", "ignore", "-m", "tests.hf_child", *store]
    child = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        cold = {}
        for name, dtype in CASES:
            cold[name, dtype] = written(name, dtype, store)
            child.stdin.write(f"{name} {dtype}\n")
            child.stdin.flush()
        out, _ = child.communicate()
        assert child.returncode == 0
    finally:
        child.kill()
        torch.set_num_threads(threads)
    warm = dict(zip(CASES, map(json.loads, out.splitlines()), strict=True))
    wrong = {}
    for (name, dtype), found in warm.items():
        boundaries = [boundary for boundary, _ in branches(name)]
        told = [(one["cached"], one["tokens"], one["logits"]) for one in found]
        due = [(at, *one.said) for at, one in zip(boundaries, cold[name, dtype], strict=True)]
        if told != due or not all(one["storage"] for one in found):
            wrong[name, dtype] = (told, due)
    assert wrong == {}
