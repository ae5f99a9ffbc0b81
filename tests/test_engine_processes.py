"""Every family, restored from a real store in another process: the same answers, bit for bit."""

import json
import subprocess
import sys
from contextlib import contextmanager
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
def one_thread():
    """As many as the other process has: the last bits depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
@pytest.mark.timeout(1200)
def test_another_process_answers_from_the_store_what_one_without_a_cache_does(store, one_thread):
    cold = {}
    with child(store) as process:
        for name, dtype in CASES:
            cold[name, dtype] = written(name, dtype, store)
            process.stdin.write(f"{name} {dtype}\n")
            process.stdin.flush()
        out, _ = process.communicate()
    assert process.returncode == 0
    wrong = {}
    for (name, dtype), line in zip(CASES, out.splitlines(), strict=True):
        found, boundaries = json.loads(line), [boundary for boundary, _ in branches(name)]
        told = [(one["cached"], one["tokens"], one["logits"]) for one in found]
        due = [(at, *one.said) for at, one in zip(boundaries, cold[name, dtype], strict=True)]
        if told != due or not all(one["storage"] for one in found):
            wrong[name, dtype] = (told, due)
    assert wrong == {}


@contextmanager
def child(store):
    """A process that answers from the store; nothing is left of it where the block fails."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.hf_child", *store]
    root, pipe = Path(__file__).parents[1], subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
