"""All sizes of a stack, computed without allocating anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf

from composer.arena import ArenaSpec, make_arenas
from composer.errors import ConfigError, Problems
from composer.keys import namespace_digest
from composer.layout import ALIGNMENT
from composer.schema import StackConfig
from composer.spec import ModelSpec, PoolSpec
from composer.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class SpacePlan:
    """One index space: what a slot (a page or a state) costs, and how many there are.

    Attributes:
        pools: The pools that share the ids, the owner first.
        is_state: Slots are states, not pages.
        window_pages: Slots before a boundary that a checkpoint keeps; None: all pages are kept.
        host_slot_bytes: Bytes of one slot in the host tier, padding and trailer included.
        device_slot_bytes: Bytes of one slot in the device tier, scratch pools included.
    """

    name: str
    pools: tuple[PoolSpec, ...]
    arenas: tuple[ArenaSpec, ...]
    is_state: bool
    window_pages: int | None
    host_slot_bytes: int
    device_slot_bytes: int
    num_host_slots: int = 0
    num_device_slots: int = 0


@dataclass(frozen=True)
class StackPlan:
    """Everything that is known about a stack before memory is touched.

    Attributes:
        spaces: Index spaces by name.
        checkpoint_pages: Pages between two checkpoints.
        host_budget_bytes: Host memory less what stays free.
    """

    spec: ModelSpec
    spaces: Mapping[str, SpacePlan]
    arenas: tuple[ArenaSpec, ...]
    page_size: int
    checkpoint_pages: int
    host_budget_bytes: int
    device_budget_bytes: int

    @property
    def host_bytes(self) -> int:
        """Bytes that the host tier allocates."""
        return sum(arena_bytes(a, self.spaces[a.space].num_host_slots) for a in self.arenas)

    @property
    def device_bytes(self) -> int:
        """Bytes that the device tier allocates."""
        return sum(s.num_device_slots * s.device_slot_bytes for s in self.spaces.values())

    @cached_property
    def namespace(self) -> str:
        """One digest over the namespaces of all arenas."""
        return namespace_digest({arena.name: arena.namespace for arena in self.arenas})

    def objects_per_million_tokens(self, arena: ArenaSpec | None = None) -> int:
        """Storage objects that 1 M tokens leave when every checkpoint is kept; None: all arenas."""
        arenas = self.arenas if arena is None else (arena,)
        return ceil(sum(self._objects_per_million(one) for one in arenas))

    def bytes_per_million_tokens(self, arena: ArenaSpec | None = None) -> int:
        """Bytes of those objects."""
        arenas = self.arenas if arena is None else (arena,)
        return ceil(sum(one.object_bytes * self._objects_per_million(one) for one in arenas))

    def _objects_per_million(self, arena: ArenaSpec) -> float:
        pages = 1_000_000 / self.page_size
        if arena.window_pages is None:
            return pages
        return min(pages, pages / self.checkpoint_pages * arena.window_pages)


def arena_bytes(arena: ArenaSpec, num_slots: int) -> int:
    """Host bytes of an arena: its slots, and the rounding of its sections' starts."""
    return num_slots * arena.object_bytes + _rounding(arena)


def make_plan(
    config: StackConfig, spec: ModelSpec, device_slots: Mapping[str, int] | None = None
) -> StackPlan:
    """Sizes of everything that ``config`` asks for.

    Args:
        config: Budgets and checkpoints.
        spec: The model's pools on this rank.
        device_slots: Slots per index space of the engine's own tensors; None: as many as
            ``device.memory`` holds.

    Raises:
        ConfigError: A budget is no size, or holds not one page of every pool; an axis order
            cannot interleave its pools.
    """
    problems = Problems()
    arenas = make_arenas(spec)
    checkpoint_pages = ceil(config.checkpoint_tokens / spec.page_size)
    spaces = {name: _space(spec, name, arenas) for name in spec.spaces}
    for arena in arenas:
        with problems.absorbing():
            arena.place(1)
    for pool in spec.pools:
        if pool.weight is not None and pool.index_space != pool.name:
            reason = f"the pool has no ids of its own: it follows '{pool.indices_from_pool}'"
            fix = f"Give pools.{pool.index_space}.weight for all that share its ids"
            problems.add(f"pools.{pool.name}.weight", reason, fix)
    host = _size(problems, "host.memory", config.host.memory)
    reserve = _size(problems, "host.reserve", config.host.reserve)
    device = _size(problems, "device.memory", config.device.memory)
    problems.raise_if_any()
    rounding = sum(_rounding(arena) for arena in arenas)
    counts: dict[str, Mapping[str, int]] = {"host": {}, "device": dict(device_slots or {})}
    budgets = [("host", host, reserve + rounding), ("device", device, 0)]
    for tier, memory, kept in budgets if device_slots is None else budgets[:1]:
        slot_bytes = {name: getattr(s, f"{tier}_slot_bytes") for name, s in spaces.items()}
        split = _Split(f"{tier}.memory", memory, kept, slot_bytes, spaces, checkpoint_pages)
        with problems.absorbing():
            counts[tier] = split.counts(spec.anchor)
    problems.raise_if_any()
    sized = {
        name: replace(
            space,
            num_host_slots=counts["host"][name],
            # a space of bare ids, without tensors to count, follows the largest
            num_device_slots=counts["device"].get(name, max(counts["device"].values())),
        )
        for name, space in spaces.items()
    }
    return StackPlan(spec, sized, arenas, spec.page_size, checkpoint_pages, host - reserve, device)


def _space(spec: ModelSpec, name: str, arenas: tuple[ArenaSpec, ...]) -> SpacePlan:
    own = tuple(arena for arena in arenas if arena.space == name)
    pools = spec.spaces[name]
    return SpacePlan(
        name=name,
        pools=pools,
        arenas=own,
        is_state=spec.is_state(name),
        window_pages=spec.window_pages(pools) if spec.is_trailing(name) else None,
        host_slot_bytes=sum(arena.object_bytes for arena in own),
        device_slot_bytes=sum(pool.page_bytes for pool in pools),
    )


@dataclass(frozen=True)
class _Split:
    """One budget, divided over index spaces.

    A unit is ``checkpoint_pages`` of every space that keeps all pages and one checkpoint of every
    trailing space: as many units as fit, and what is left goes to the anchor.
    """

    key: str
    memory: int
    kept: int  # bytes of it that slots cannot have
    slot_bytes: Mapping[str, int]
    spaces: Mapping[str, SpacePlan]
    checkpoint_pages: int

    @property
    def budget(self) -> int:
        return self.memory - self.kept

    def counts(self, anchor: str | None) -> dict[str, int]:
        """Slots of each space.

        Raises:
            ConfigError: The budget holds not one page and one checkpoint.
        """
        least = {name: space.window_pages or 1 for name, space in self.spaces.items()}
        needed = self._bytes(least)
        if needed > self.budget:
            raise ConfigError.of(
                self.key,
                f"{format_bytes(max(self.budget, 0))} holds not one page of every pool: "
                f"that takes {needed:,} bytes ({format_bytes(needed)}), {self._parts(least)}",
                f"Raise {self.key} to {ceil((needed + self.kept) / 2**20)}MiB or more, "
                "or lower page_size",
            )
        if any(space.pools[0].weight is not None for space in self.spaces.values()):
            return self._by_weight(least)
        unit = {
            name: space.window_pages or self.checkpoint_pages for name, space in self.spaces.items()
        }
        unit_bytes = self._bytes(unit)  # 0 where a pipeline stage owns no layer of any pool
        num_units = self.budget // unit_bytes if unit_bytes else 0
        counts = {n: num_units * unit[n] for n in unit} if num_units else least
        if anchor is not None and self.slot_bytes[anchor]:
            counts[anchor] += (self.budget - self._bytes(counts)) // self.slot_bytes[anchor]
        return counts

    def _by_weight(self, least: Mapping[str, int]) -> dict[str, int]:
        problems, counts = Problems(), {}
        weights = {n: max(s.pools[0].weight or 0.0, 0.0) for n, s in self.spaces.items()}
        total = sum(weights.values())
        for name, weight in weights.items():
            share = int(self.budget * weight / total) if 0 < total < inf else 0
            slot_bytes = self.slot_bytes[name]
            counts[name] = share // slot_bytes if slot_bytes else least[name]
            if counts[name] < least[name]:
                problems.add(
                    f"pools.{name}.weight",
                    f"{weight:g} of {total:g} gives {format_bytes(share)} of {self.key}, and "
                    f"{least[name]} slots take {format_bytes(least[name] * self.slot_bytes[name])}",
                    "Give every index space a weight that holds them, or none a weight",
                )
        problems.raise_if_any()
        return counts

    def _bytes(self, counts: Mapping[str, int]) -> int:
        return sum(count * self.slot_bytes[name] for name, count in counts.items())

    def _parts(self, counts: Mapping[str, int]) -> str:
        return ", ".join(
            f"{name} {count} x {self.slot_bytes[name]:,}" for name, count in counts.items()
        )


def _rounding(arena: ArenaSpec) -> int:
    """Bytes that rounding the sections' starts may add, at most."""
    return ALIGNMENT * (len(arena.sections) + 1)


def _size(problems: Problems, key: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        problems.add(key, str(error))
        return 0
