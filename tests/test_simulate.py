"""A simulation is a replay without bytes: the same hits, boundaries, evictions and movement."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import replace

import pytest

from composer.config import load_stack_config
from composer.jobs.replay import replay
from composer.jobs.simulate_run import Params, simulate
from composer.prefix_cache import PrefixCache
from composer.simulation.controller import IndexController
from composer.simulation.links import Link, Links
from composer.simulation.occupancy import NUM_SAMPLES
from composer.simulation.plan import plan_tiers
from composer.traces import Request

BLOCK = 32


def sessions(seed: int, count: int, turns: int = 4, partial: bool = True) -> list[Request]:
    """Talks under a few system prompts, interleaved, each turn longer than the one before."""
    walk, next_id = random.Random(seed), 10_000
    systems = [tuple(range(1000 * n, 1000 * n + walk.randint(1, 6))) for n in range(3)]
    talks = [walk.choice(systems) for _ in range(count)]
    requests = []
    for index in walk.choices(range(count), k=count * turns):
        more = walk.randint(1, 5)
        talks[index] += tuple(range(next_id, next_id + more))
        next_id += more
        tokens = len(talks[index]) * BLOCK - (walk.randint(0, BLOCK - 1) if partial else 0)
        requests.append(Request(talks[index], tokens, BLOCK))
    return requests


class PlainLru:
    """What a device tier alone must do for a model that keeps every page: a list of pages."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages, self.pages = num_pages, OrderedDict()  # the page used longest ago first
        self.hits = self.evicted = 0

    def serve(self, request: Request) -> None:
        blocks = [request.hash_ids[: n + 1] for n in range(request.num_tokens // BLOCK)]
        known = next((n for n, one in enumerate(blocks) if one not in self.pages), len(blocks))
        self.hits += known
        for one in reversed(blocks[:known]):  # the head of a prompt is its most recent page
            self.pages.move_to_end(one)
        total = -(-request.num_tokens // BLOCK)  # a partial last page takes a slot for a while
        while len(self.pages) + total - known > self.num_pages:
            self.pages.popitem(last=False)
            self.evicted += 1
        for one in reversed(blocks[known:]):
            self.pages[one] = None
        for one in reversed(blocks):
            self.pages.move_to_end(one)


def plain(**memory: str):
    """A model that keeps every page, one page per block of the trace: 32 KiB each."""
    config = load_stack_config("llama3_1_8b", ["layers_per_pool=1", f"page_size={BLOCK}"])
    return replace(
        config,
        **{tier: replace(getattr(config, tier), memory=size) for tier, size in memory.items()},
    )


PAGE_BYTES = BLOCK * 8 * 128 * 2 * 2


@pytest.mark.parametrize("num_pages", [40, 90, 200, 10_000])
@pytest.mark.parametrize("partial", [False, True])
def test_a_device_tier_alone_is_a_plain_lru_of_pages(num_pages, partial):
    requests = sessions(1, 40, partial=partial)
    expected = PlainLru(num_pages)
    for request in requests:
        expected.serve(request)
    found = simulate(plain(device=f"{num_pages * PAGE_BYTES}B", host="0"), Params(), requests)

    assert found.plan.spaces["kv"].num_device_slots == num_pages
    assert found.tally.hit_tokens == Counter(device=expected.hits * BLOCK, host=0, storage=0)
    assert found.counters["evicted.device.kv"] == expected.evicted
    assert (expected.evicted > 100) == (num_pages < 10_000)
    assert (found.num_stored, found.tally.unserved) == (None, 0)


@pytest.fixture
def boundaries(monkeypatch):
    """Every prefix that is restored: its pages by the tier that had them, and what cut it."""
    told = []

    def restore(cache, match, *, wait=True):
        lease = true_restore(cache, match, wait=wait)
        told.append((lease.page_tiers.tolist(), lease.shortened_by))
        return lease

    true_restore = PrefixCache.restore
    monkeypatch.setattr(PrefixCache, "restore", restore)
    return told


WINDOW = "config.text_config.sliding_window=64"
LOCKSTEP = [
    ("qwen3_next_80b", "28MiB", "40MiB", []),
    ("qwen3_next_80b", "40MiB", "28MiB", ["policy=write_back", "policy.eviction=slru"]),
    ("gemma3_27b", "5MiB", "9MiB", [WINDOW]),
    (
        "gemma3_27b",
        "9MiB",
        "5MiB",
        [WINDOW, "policy=write_through_selective", "policy.eviction=lfu"],
    ),
]


@pytest.mark.parametrize(("model", "device", "host", "more"), LOCKSTEP)
def test_a_replay_in_lockstep_and_a_simulation_agree_on_everything(
    boundaries, model, device, host, more
):
    settings = [f"device.memory={device}", f"host.memory={host}", "layers_per_pool=2", *more]
    settings += ["page_size=16", "checkpoint_tokens=64", "backend=memory"]
    config = load_stack_config(model, settings)
    requests = sessions(2, 7)
    replayed = replay(config, requests, lockstep=True)
    told, boundaries[:] = list(boundaries), []
    simulated = simulate(config, Params(), requests)

    assert told == boundaries
    tally, other = replayed.tally, simulated.tally
    assert sum(tally.hit_tokens.values()) > 0
    assert tally.mismatches == 0
    for name in (
        "hit_tokens",
        "shortened_by",
        "cut_tokens",
        "unserved",
        "checkpoints",
        "incomplete_checkpoints",
    ):
        assert getattr(tally, name) == getattr(other, name), name
    timed = ("moved_us.", "backend.")
    before = {n: c for n, c in replayed.counters.items() if not n.startswith(timed)}
    after = {n: c for n, c in simulated.counters.items() if not n.startswith(timed)}
    assert before == after
    assert sum(c for n, c in after.items() if n.startswith("evicted.")) > 100
    assert replayed.objects == simulated.num_stored


def test_nothing_is_allocated_but_ids():
    _, plan = plan_tiers(plain(device="2GiB", host="900GiB"))
    controller = IndexController(plan, None, Links())

    assert controller.device.tensors == {}
    assert sum(arena.memory.nbytes for arena in controller.host.arenas.values()) == 0
    assert controller.host.spaces["kv"].num_slots == 900 * 2**30 // (PAGE_BYTES + 64)


def test_a_full_storage_tier_gives_up_what_was_used_longest_ago():
    requests = sessions(3, 30)
    memory = {"device": f"{40 * PAGE_BYTES}B", "host": f"{60 * (PAGE_BYTES + 64) + 192}B"}
    unlimited, large, small, none = (
        simulate(plain(**memory), Params(storage=size), requests)
        for size in (None, f"{400 * (PAGE_BYTES + 64)}B", f"{90 * (PAGE_BYTES + 64)}B", "0")
    )

    hits = [sum(one.tally.hit_tokens.values()) for one in (unlimited, large, small, none)]
    assert hits == sorted(hits, reverse=True)
    assert len(set(hits)) >= 3
    assert hits[0] == unlimited.ideal.full.num_hits * BLOCK
    assert small.stored_bytes <= 90 * (PAGE_BYTES + 64)
    assert small.counters["backend.evicted"] > 0
    assert (none.num_stored, none.tally.hit_tokens["storage"]) == (None, 0)


def test_movements_take_the_time_of_their_links():
    links = Links(host=Link(gb_s=10, us_per_call=7), storage=Link(us_per_call=100))
    memory = {"device": f"{40 * PAGE_BYTES}B", "host": f"{60 * (PAGE_BYTES + 64) + 192}B"}
    found = simulate(plain(**memory), Params(links=links), sessions(4, 20))

    assert set(found.movements) == {"backup", "load_back", "exists", "write_storage", "prefetch"}
    for name, one in found.movements.items():
        assert one.num_calls > 0
        moving = one.num_bytes / 10e9 if one.link == "host" else 0
        each = 7e-6 if one.link == "host" else 100e-6
        assert found.modelled_s[name] == pytest.approx(moving + each * one.num_calls)
    assert found.movements["exists"].num_bytes == 0
    written = found.counters["objects_written"] * (PAGE_BYTES + 64)
    assert found.movements["write_storage"].num_bytes == written
    assert found.movements["load_back"].num_bytes % PAGE_BYTES == 0


def test_occupancy_is_a_bounded_series_within_the_slots():
    requests = sessions(5, 100, turns=7)
    found = simulate(plain(device=f"{50 * PAGE_BYTES}B", host="80MiB"), Params(), requests)

    spaces = {(one["tier"], one["space"]) for one in found.occupancy}
    assert spaces == {("device", "kv"), ("host", "kv"), ("storage", "bytes")}
    assert len(found.occupancy) <= NUM_SAMPLES * len(spaces)
    assert found.occupancy[-1]["request"] == len(requests)
    for one in found.occupancy:
        assert one["slots"] is None or 0 <= one["used"] <= one["slots"]
    device = [one["used"] for one in found.occupancy if one["tier"] == "device"]
    assert device[0] < max(device) == 50


def test_a_plain_model_leaves_nothing_but_pages_in_the_host_tier(monkeypatch):
    stacks = []
    true_init = PrefixCache.__init__

    def init(cache, *args, **settings):
        true_init(cache, *args, **settings)
        stacks.append(cache)

    monkeypatch.setattr(PrefixCache, "__init__", init)
    simulate(plain(device="4MiB", host="80MiB"), Params(), sessions(6, 10))

    (cache,) = stacks
    assert len(cache.tiers.host.pages) > 50
    assert cache.tiers.host.checkpoints == {}
