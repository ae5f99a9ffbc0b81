"""Every allocated preset, layout and backend: 4 pages and a checkpoint through all tiers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from composer.backends.mooncake_store import EmbeddedStore
from composer.jobs.pattern import PagePattern
from composer.stack import Stack, compose

PRESETS = ("llama3_1_8b", "deepseek_v3_2", "qwen3_next_80b", "gemma3_27b", "mamba2_2_7b")
LAYOUTS = ("page_envelope", "page_first_direct", "page_first", "page_head", "layer_first")
NUM_PAGES = 4


@pytest.fixture(scope="module")
def store() -> Iterator[EmbeddedStore]:
    with EmbeddedStore(512 << 20, holder=True, prepopulate=False) as running:
        yield running


def backend_overrides(backend: str, request: pytest.FixtureRequest, folder: Path) -> list[str]:
    if backend == "mooncake":
        address = request.getfixturevalue("store").address
        return [f"backend.address='{address}'", "backend.segment_in=holder"]
    return [f"backend.path={folder}"] if backend == "file" else []


def settings(preset: str, layout: str, backend: str) -> list[str]:
    return [
        f"layout={layout}",
        f"backend={backend}",
        "layers_per_pool=2",
        "page_size=16",
        "checkpoint_tokens=64",
        "host.memory=256MiB",
        "device.memory=256MiB",
        f"deployment={preset}-{layout}",
    ]


def compute(stack: Stack, tokens: np.ndarray) -> PagePattern:
    pattern = PagePattern(stack.device)
    match = stack.match(tokens)
    assert match.num_pages == 0
    slots = stack.allocate(NUM_PAGES, 1)
    assert slots is not None
    for space, ids in slots.pages.items():
        pattern.fill(space, ids, match.prompt.hashes)
    states = slots.states[0] if slots.states else None
    for space, slot in (states or {}).items():
        pattern.fill(space, [slot], match.prompt.hashes[-1:])
    stack.commit(tokens, slots, {len(tokens): states})
    slots.release()
    return pattern


def check(stack: Stack, tokens: np.ndarray, pattern: PagePattern, tier: str) -> None:
    """The whole prompt comes from ``tier``, into slots that held something else before."""
    match = stack.match(tokens)
    with stack.restore(match) as lease:
        assert lease.num_pages == NUM_PAGES
        assert lease.hit_tokens[tier] == len(tokens)
        for space, ids in lease.pages.items():
            held = match.prompt.hashes[-len(ids) :]
            assert pattern.mismatches(space, ids, held) == []
        for space, slot in lease.states.items():
            assert pattern.mismatches(space, [slot], match.prompt.hashes[-1:]) == []
        assert sum(map(len, lease.pages.values())) + len(lease.states) > 0


def cases() -> Iterator[object]:
    """All of them; those on Mooncake take seconds each, so that `make test` runs some of them."""
    for preset, layout, backend in product(PRESETS, LAYOUTS, ("memory", "file", "mooncake")):
        marks = []
        if backend == "mooncake":
            marks = [pytest.mark.mooncake]
            if (PRESETS.index(preset) - LAYOUTS.index(layout)) % len(LAYOUTS):
                marks.append(pytest.mark.slow)
        yield pytest.param(preset, layout, backend, marks=marks, id=f"{preset}-{layout}-{backend}")


@pytest.mark.parametrize(("preset", "layout", "backend"), list(cases()))
def test_a_round_trip_through_all_tiers_is_byte_exact(
    preset: str,
    layout: str,
    backend: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    overrides = settings(preset, layout, backend) + backend_overrides(backend, request, tmp_path)
    tokens = np.arange(16 * NUM_PAGES) * 7
    with compose(preset, overrides, poison=True) as stack:
        pattern = compute(stack, tokens)
        check(stack, tokens, pattern, "device")

        published = stack.publish()
        assert published.pages_unsaved == 0
        assert published.pages_saved == published.pages_written > 0

        stack.cache.tiers.device.clear(None)
        check(stack, tokens, pattern, "host")

        stack.cache.tiers.device.clear(None)
        stack.cache.tiers.host.clear(None)
        check(stack, tokens, pattern, "storage")
        assert stack.counters()["objects_read"] > 0
