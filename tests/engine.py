"""A pretend engine: it computes pages whose bytes only the right page can have, and checks them."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from omegaconf import OmegaConf

from composer import compose
from composer.backends.memory import MemoryBackend
from composer.config import to_stack_config
from composer.keys import ObjectKey, build_key
from composer.reading.lease import Lease
from composer.reading.lookup import Match
from composer.schema import StackConfig
from composer.stack import Stack
from composer.stack_plan import plan_stack
from tests.faults import Inline
from tests.model_configs import composed

PAGE = 4  # tokens
POISON = 0xEE
WINDOW = {"hit_policy": "trailing_pages", "window_tokens": 3 * PAGE}


def heads(width: int) -> dict:
    return {n: {"shape": [2, width], "dtype": "bfloat16"} for n in ("k", "v")}


KV = {"layers": "all", "buffers": heads(4)}
INDEXER = {
    "indices_from_pool": "kv",
    "unit": "page",
    "layers": [{"indices": [0, 2]}],
    "buffers": {"key": {"shape": [20], "dtype": "uint8"}},
}
STATE = {  # four tensors of any dtype in one slot
    "unit": "state",
    "layers": [{"indices": [1, 2]}],
    "buffers": {
        "conv": {"shape": [6, 3], "dtype": "bfloat16"},
        "temporal": {"shape": [2, 3, 5], "dtype": "float32"},
        "history": {"shape": [2], "dtype": "int64"},
        "flags": {"shape": [7], "dtype": "uint8"},
    },
}
SWA = {"layers": [{"indices": [0, 1]}], "buffers": heads(3), **WINDOW}
FOLLOWER = {  # of a window, with a window of its own
    "indices_from_pool": "swa",
    "unit": "page",
    "layers": [{"indices": [0]}],
    "buffers": {"key": {"shape": [7], "dtype": "uint8"}},
    **WINDOW,
}
DRAFT = {
    "indices_from_pool": "kv",
    "layers": "draft",
    "required": False,
    "buffers": {"latent": {"shape": [9], "dtype": "bfloat16"}},
}
EXTRA = {"layers": [{"indices": [2]}], "buffers": {"key": {"shape": [5], "dtype": "int8"}}}

SPLIT = {"split": {"axis": 0}}
RANKS = {  # bytes that every tensor rank has, and bytes that are cut over them
    "kv": {"layers": "all", "buffers": {n: one | SPLIT for n, one in heads(4).items()}},
    "latent": {
        "indices_from_pool": "kv",
        "layers": "all",
        "buffers": {"latent": {"shape": [9], "dtype": "bfloat16"}},
    },
}

SCHEMAS = {
    "kv": {"kv": KV},
    "kv+indexer": {"kv": KV, "indexer": INDEXER},
    "kv+state": {"kv": KV, "state": STATE},
    "kv+window": {"kv": KV, "swa": SWA},
    "kv+window+state": {"kv": KV, "swa": SWA, "state": STATE},
    "kv+indexer+state": {"kv": KV, "indexer": INDEXER, "state": STATE},
    "kv+draft": {"kv": KV, "draft": DRAFT},
    "kv+extra": {"kv": KV, "extra": EXTRA},  # two free lists that keep every page
    "state": {"state": STATE},
    "ranks": RANKS,
    "index only": {"kv": {"layers": "all"}, "indexer": INDEXER, "swa": SWA},
}


def config(schema: str, units: tuple[int, int] = (8, 8), **settings) -> StackConfig:
    """A small model.

    Args:
        schema: One of SCHEMAS, or ``compressed``: a preset with two layers a pool.
        units: Of the device and the host tier: two pages each, and one checkpoint of what trails.
        settings: Fields of the config.
    """
    if schema == "compressed":
        page_size = 256
        made = OmegaConf.merge(composed("deepseek_v4_flash"), {"layers_per_pool": 2})
    else:
        page_size = PAGE
        made = OmegaConf.create(
            {
                "model": {"name": "test/tiny"},
                "anchor": "kv" if "kv" in SCHEMAS[schema] else None,
                "num_layers": 3,
                "num_draft_layers": 1,
                "draft": "draft" in SCHEMAS[schema],
                "layout": {"axes": ["page", "buffer", "layer", "token", "head"]},
                "pools": SCHEMAS[schema],
            }
        )
    made.backend = {"name": "memory"}
    fixed = {"page_size": page_size, "checkpoint_tokens": 2 * page_size}
    made = OmegaConf.merge(made, fixed, settings)
    return with_units(to_stack_config(made), *units)


def with_units(made: StackConfig, device: int, host: int) -> StackConfig:
    """Set both budgets, in units."""
    _, plan = plan_stack(made)
    unit = {n: s.window_pages or plan.checkpoint_pages for n, s in plan.spaces.items()}
    sizes = {
        tier: sum(unit[n] * getattr(s, f"{tier}_slot_bytes") for n, s in plan.spaces.items())
        for tier in ("device", "host")
    }
    rounding = sum(64 * (len(arena.sections) + 1) for arena in plan.arenas)
    made.device.memory = f"{device * sizes['device']}B"
    made.host.memory = f"{host * sizes['host'] + rounding}B"
    return made


def open_stack(
    schema: str, units=(8, 8), *, backend=None, executor=None, workers=False, **settings
) -> Stack:
    """A stack on a memory backend, whose jobs run when they are submitted, or on ``workers``."""
    stack = compose(
        config(schema, units, **settings),
        backend=backend or MemoryBackend(),
        executor=None if workers else executor or Inline(),
        poison=True,
    )
    stack.controller.guard.breaker.pause_s = 0  # tests do not wait
    return stack


@cache
def expected(pool: str, buffer: str, layer: int, shard: str, page: bytes, size: int) -> bytes:
    """What a page (or state) of one layer must hold."""
    name = f"{pool}/{buffer}/{layer}/{shard}/".encode()
    return hashlib.shake_128(name + page).digest(size)


def prompt(*pages: int, page_size: int = PAGE, tail: int = 0) -> list[int]:
    """Tokens: each number is a page of its own, and so many tokens more."""
    full = [1000 * page + i for page in pages for i in range(page_size)]
    return full + list(range(tail))


@dataclass
class Served:
    """How one prompt was served."""

    match: Match
    num_pages: int  # restored
    hit_tokens: Mapping[str, int]
    shortened_by: str | None
    degraded: tuple[str, ...]
    complete: bool  # all of it was computed


class Engine:
    """Serves prompts from a stack."""

    def __init__(self, stack: Stack):
        self.stack = stack
        self.num_verified = 0

    def cells(self, space: str, slot: int) -> Iterator[tuple[str, torch.Tensor, tuple]]:
        """Pool, bytes, and what they are, of everything that one device slot holds."""
        for pool in self.stack.plan.spec.spaces[space]:
            if not pool.prefix_cacheable:
                continue
            rows = slice(slot * pool.rows_per_page, (slot + 1) * pool.rows_per_page)
            for buffer in pool.buffers:
                tensor = self.stack.device.tensors[pool.name][buffer.name]
                for index, layer in enumerate(pool.layers):
                    cell = tensor[index, rows].flatten().view(torch.uint8)
                    yield pool.name, cell, (pool.name, buffer.name, layer, pool.shard)

    def fill(self, space: str, slot: int, page: bytes) -> None:
        for _, cell, what in self.cells(space, slot):
            data = expected(*what, page, cell.numel())
            cell.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def verify(self, space: str, slot: int, page: bytes, degraded=(), layers=None) -> None:
        """One device slot, as far as these layers go (None: all). What is missing is blank."""
        for pool, cell, what in self.cells(space, slot):
            if layers is not None and what[2] not in layers:
                continue
            right = cell.numpy().tobytes() == expected(*what, page, cell.numel())
            blank = pool in degraded and not cell.any()
            assert right or blank, f"wrong bytes: {what} in slot {slot} of {space}"
        self.num_verified += 1

    def verify_host(self, space: str, slot: int, page: bytes, degraded=()) -> None:
        """One host slot."""
        for pool in self.stack.plan.spec.spaces[space]:
            entry = self.stack.group.entries.get(pool.name)
            for name, view in entry.buffers.items() if entry and pool.name not in degraded else ():
                for layer, tensor in zip(pool.layers, view.by_layer(), strict=True):
                    found = tensor[0, slot].contiguous().numpy().tobytes()
                    what = (pool.name, name, layer, pool.shard)
                    assert found == expected(*what, page, len(found)), f"wrong bytes: {what}"

    def verify_lease(self, match: Match, lease: Lease, layers=None) -> None:
        """Every page and state that a lease claims, as far as these layers go (None: all)."""
        hashes = match.prompt.hashes[: lease.num_pages]
        for space, plan in self.stack.plan.spaces.items():
            slots = [lease.states[space]] if space in lease.states else lease.pages.get(space, [])
            window = len(hashes) if plan.window_pages is None else plan.window_pages
            held = hashes[max(len(hashes) - window, 0) :]
            assert len(slots) == len(held) == len(set(slots))
            for slot, page in zip(slots, held, strict=True):
                self.verify(space, slot, page, lease.degraded, layers)

    def serve(self, tokens, salt=None, *, max_tokens=None, states_at=None) -> Served:
        """match -> restore -> verify -> allocate -> compute -> commit -> release."""
        stack = self.stack
        match = stack.match(tokens, salt, max_tokens=max_tokens)
        with stack.restore(match) as lease:
            self.verify_lease(match, lease)
            done = self._compute(tokens, salt, match, lease.num_pages, states_at)
        total = -(-len(tokens) // stack.page_size)
        while done < total:  # in parts, as much as there is room for
            stack.cache.writer.drain()
            part = self._compute(tokens, salt, match, done, states_at)
            if part == done:
                break
            done = part
        return Served(
            match,
            lease.num_pages,
            lease.hit_tokens,
            lease.shortened_by,
            lease.degraded,
            done >= total,
        )

    def _compute(self, tokens, salt, match, start, states_at) -> int:
        size = self.stack.page_size
        wanted = states_at
        if wanted is None:
            wanted = self.stack.checkpoints(match, start * size)
        count = -(-len(tokens) // size) - start
        while count:
            end = start + count
            at = [n for n in wanted if start * size < n <= end * size]
            if states_at is None and end * size <= len(tokens) and end * size not in at:
                at.append(end * size)  # the next part goes on from here
            slots = self.stack.allocate(count, len(at))
            if slots is not None:
                with slots:
                    self._commit(tokens[: end * size], salt, match, slots, at, start)
                return end
            count //= 2
        return start

    def _commit(self, tokens, salt, match, slots, boundaries, start) -> None:
        states = dict(zip(boundaries, slots.states, strict=True))
        self.compute(match, start * self.stack.page_size, slots, states)
        self.stack.commit(tokens, slots, states, salt, start=start * self.stack.page_size)

    def compute(self, match, start, slots, states) -> None:
        """Fill the slots from a token on, and states at their boundaries."""
        hashes, size = match.prompt.hashes, self.stack.page_size
        for space, ids in slots.pages.items():
            for slot, page in zip(ids, hashes[start // size :], strict=False):
                self.fill(space, slot, page)
        for boundary, state in states.items():
            for space, slot in state.items():
                self.fill(space, slot, hashes[boundary // size - 1])

    def poison_free(self) -> None:
        """Overwrite what no resident holds; only while nothing is in use."""
        for space, ids in free_slots(self.stack, "device").items():
            for slot in ids:
                for _, cell, _ in self.cells(space, slot):
                    cell.fill_(POISON)
        free = free_slots(self.stack, "host")
        for entry in self.stack.group.entries.values():
            ids = free[entry.spec.index_space]
            for tensor in (layer for view in entry.buffers.values() for layer in view.layers):
                tensor[:, ids] = 0x33


def free_slots(stack: Stack, tier: str) -> dict[str, list[int]]:
    """Slots that hold nothing."""
    residency = getattr(stack.cache.tiers, tier)
    found = {}
    for space, plan in stack.plan.spaces.items():
        used = {one.slot for one in residency.residents[space].values()}
        found[space] = sorted(set(range(getattr(plan, f"num_{tier}_slots"))) - used)
    return found


def check_accounts(stack: Stack) -> None:
    """While nothing is in use: every slot is free or resident, and nobody holds what he should not.

    The keepers of what trails are recounted from the checkpoints.
    """
    for tier in ("device", "host"):
        residency = getattr(stack.cache.tiers, tier)
        for space, free in free_slots(stack, tier).items():
            slots = [one.slot for one in residency.residents[space].values()]
            assert len(set(slots)) == len(slots), f"{tier} {space}: a slot has two owners"
            assert residency.num_free(space) == len(free), f"{tier} {space}: slots leaked"
        assert all(page.locks == 0 for page in residency.pages.values()), f"{tier}: locked"
        for space in residency.page_spaces:
            assert set(residency.residents[space]) == set(residency.pages)
        for space in residency.trailing:
            keepers: Counter[bytes] = Counter()
            for checkpoint in residency.checkpoints.values():
                keepers.update(checkpoint.holds[space])
            held = {page: one.holders for page, one in residency.residents[space].items()}
            assert held == dict(keepers), f"{tier} {space}: holders"


def present_by_hand(stack: Stack, match: Match, *, storage=True) -> dict[str, list[bool]]:
    """Per index space and page of a prompt: whether any tier has it, asked one at a time."""
    tiers, stored = stack.cache.tiers, set()
    if storage and stack.backend is not None:
        stored = set(stack.backend.keys())
    found: dict[str, list[bool]] = {}
    for space, plan in stack.plan.spaces.items():
        required = [arena for arena in plan.arenas if arena.required]
        found[space] = []
        for page in match.prompt.hashes:
            here = page in tiers.device.residents[space] or page in tiers.host.residents[space]
            keys = [
                build_key(ObjectKey(a.namespace, match.prompt.scope, a.name, a.shard, page))
                for a in required
            ]
            there = storage and all(key in stored for key in keys)
            found[space].append(here or there)
    return found


def longest_by_hand(stack: Stack, present: dict[str, list[bool]], limit: int) -> int:
    """The longest prefix at which every index space has what it needs, tried one by one."""
    for length in range(limit, 0, -1):
        if all(
            all(
                present[space][
                    0 if plan.window_pages is None else max(0, length - plan.window_pages) : length
                ]
            )
            for space, plan in stack.plan.spaces.items()
        ):
            return length
    return 0
