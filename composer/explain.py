"""Why a prompt is, or is not, served from the cache: tier by tier and pool by pool.

Nothing is touched: the tiers are looked at, and storage is asked once which objects it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from composer.arena import ArenaSpec
from composer.boundary import Bools, Requirement, longest, longest_restorable, shortened_by
from composer.keys import ObjectKey, build_keys
from composer.plan import SpacePlan
from composer.reading.lookup import TIERS, Prompt, Tiers
from composer.reading.report import Report
from composer.spec import PoolSpec


class Explain:
    """Explains one prompt as things are now."""

    def __init__(self, tiers: Tiers, prompt: Prompt) -> None:
        self._tiers, self._prompt = tiers, prompt
        self._plan, self._controller = tiers.plan, tiers.controller
        with tiers.lock:
            here = tiers.look(prompt.hashes)
            self._here = {"device": here.device, "host": here.host}
            self._held = {tier.tier: tier.held() for tier in (tiers.device, tiers.host)}
            self._free = {
                tier.tier: {space: tier.num_free(space) for space in tiers.spaces}
                for tier in (tiers.device, tiers.host)
            }
        self._objects = self._ask_storage()
        stored = {space: self._all_of(space) for space in tiers.spaces}
        self._presence = {**self._here, "storage": stored}
        self._needs = tiers.requirements(self._presence.values())
        self._boundary = longest_restorable(self._needs, len(prompt.hashes))

    def describe(self, report: Report | None = None) -> dict[str, Any]:
        """Everything, as plain data; ``report``: of the prompt's last restore."""
        prompt, size = self._prompt, self._plan.page_size
        num_pages, boundary = len(prompt.hashes), self._boundary
        tiers = self._page_tiers()
        return {
            "num_tokens": prompt.num_tokens,
            "num_pages": num_pages,
            "page_size": size,
            "scope": prompt.scope,
            "boundary_pages": boundary,
            "shortened_by": shortened_by(self._needs, boundary),
            "set_by": self._set_by(),
            "hit_tokens": {
                tier: int(np.count_nonzero(tiers == index)) * size
                for index, tier in enumerate(TIERS)
            },
            "present": {
                tier: {space: int(flags.sum()) for space, flags in one.items()}
                for tier, one in self._presence.items()
            },
            "backend": self._controller.backend is not None,
            "pools": {pool.name: self._pool(pool) for pool in self._plan.spec.pools},
            "namespaces": {arena.name: arena.namespace for arena in self._plan.arenas},
            "room": self._room(),
            "held": self._held,
            "reasons": self._reasons(),
            "last_restore": None if report is None else asdict(report),
        }

    def _ask_storage(self) -> dict[str, Bools]:
        """Storage object -> per page, whether it is there; all in one call, optional ones too."""
        arenas, prompt = self._plan.arenas, self._prompt
        keys: list[str] = []
        for one in arenas:
            key = ObjectKey(one.namespace, prompt.scope, one.name, one.shard, b"")
            keys += build_keys(key.prefix, prompt.hashes)
        found, count = self._controller.ask(keys), len(prompt.hashes)
        return {
            one.name: found[index * count : (index + 1) * count] for index, one in enumerate(arenas)
        }

    def _all_of(self, space: str, without: ArenaSpec | None = None) -> Bools:
        """Per page, whether storage has all required objects of a space (but one)."""
        found = np.full(len(self._prompt.hashes), self._controller.backend is not None)
        for arena in self._plan.spaces[space].arenas:
            if arena.required and arena is not without:
                found &= self._objects[arena.name]
        return found

    def _page_tiers(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        """Per page of the prefix, the fastest tier that has it, as an index into TIERS."""
        space, boundary = self._tiers.spaces[0], self._boundary
        found = np.full(boundary, len(TIERS), dtype=np.int8)
        for index in reversed(range(len(TIERS))):
            found[self._presence[TIERS[index]][space][:boundary]] = index
        if boundary and self._plan.spaces[space].window_pages is not None:
            found[:] = found[-1]
        return found

    def _pool(self, pool: PoolSpec) -> dict[str, Any]:
        space = self._plan.spaces[pool.index_space]
        arena = self._arena(pool)
        presence: dict[str, Bools] = {t: flags[space.name] for t, flags in self._here.items()}
        if arena is not None and self._controller.backend is not None:
            presence["storage"] = self._objects[arena.name]
        return {
            "index_space": space.name,
            "required": pool.required and pool.prefix_cacheable,
            "hit_policy": pool.hit_policy.name,
            "window_pages": space.window_pages,
            "object": None if arena is None else arena.name,
            "tiers": {tier: _counts(flags) for tier, flags in presence.items()},
            "boundary_without": self._without(space, arena),
        }

    def _without(self, space: SpacePlan, arena: ArenaSpec | None) -> int:
        """The boundary if the pools that share this one's object were not required.

        In the tiers above storage the pools of an index space come and go together.
        """
        needs = [need for need in self._needs if need.name != space.name]
        if arena is not None and sum(one.required for one in space.arenas) > 1:
            here = [flags[space.name] for flags in self._here.values()]
            present = np.logical_or.reduce([*here, self._all_of(space.name, arena)])
            needs.append(Requirement(space.name, present, space.window_pages))
        return longest_restorable(needs, len(self._prompt.hashes))

    def _set_by(self) -> list[str]:
        """Pools without which the boundary would lie further.

        Where it takes several, those that lack something at the length that the anchor reaches.
        """
        if self._boundary == len(self._prompt.hashes):
            return []
        found = []
        for pool in self._required():
            space = self._plan.spaces[pool.index_space]
            if self._without(space, self._arena(pool)) > self._boundary:
                found.append(pool.name)
        reach = longest(self._needs[0].allowed())
        if found or reach <= self._boundary:
            return found
        lacking = {need.name for need in self._needs if not need.allowed()[reach]}
        return [pool.name for pool in self._required() if pool.index_space in lacking]

    def _required(self) -> list[PoolSpec]:
        return [pool for pool in self._plan.spec.pools if pool.required and self._arena(pool)]

    def _arena(self, pool: PoolSpec) -> ArenaSpec | None:
        """The storage object that carries a pool; None: it is never stored."""
        arenas = self._plan.spaces[pool.index_space].arenas
        return next((one for one in arenas if pool in one.pools), None)

    def _room(self) -> dict[str, dict[str, dict[str, int]]]:
        """Tier -> index space -> slots there are, that nobody uses, and that the prefix takes."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for tier, free in self._free.items():
            found[tier] = {}
            for name, space in self._plan.spaces.items():
                slots: int = getattr(space, f"num_{tier}_slots")
                window = space.window_pages
                wanted = self._boundary if window is None else min(window, self._boundary)
                found[tier][name] = {"slots": slots, "free": free[name], "wanted": wanted}
        return found

    def _reasons(self) -> list[str]:
        """Why not more, for people, the first thing first."""
        prompt, size, found = self._prompt, self._plan.page_size, []
        if tail := prompt.num_tokens % size:
            found.append(f"partial page: the last {tail} tokens fill no page and are never kept")
        if self._controller.backend is None:
            found.append("no backend: storage is detached")
        if self._boundary < len(prompt.hashes):
            found.append(self._next_page())
        for tier, spaces in self._room().items():
            for name, room in spaces.items():
                if room["wanted"] > room["slots"]:
                    found.append(
                        f"{tier}_capacity: {name} needs {room['wanted']} slots of the {tier} tier, "
                        f"which has {room['slots']}"
                    )
        return found

    def _next_page(self) -> str:
        names, at = self._set_by(), self._boundary
        if not names:
            return f"not known: no tier has page {at} (counted from 0), or no boundary behind it"
        pools = [self._pool(self._plan.spec.pool(name)) for name in names]
        without = max(pool["boundary_without"] for pool in pools)
        reach = max(without, longest(self._needs[0].allowed()))
        verb = "is" if len(names) == 1 else "are"
        return f"boundary: {', '.join(names)} {verb} missing between page {at} and page {reach}"


def with_policy(told: Mapping[str, Any], policy: Any, verify: str) -> dict[str, Any]:
    """An explanation with the settings that decide, and what they refuse.

    Args:
        told: What ``Explain.describe`` says.
        policy: A stack's ``PolicyConfig``.
        verify: How reads are verified.
    """
    far, least = told["hit_tokens"]["storage"], policy.prefetch_min_tokens
    reasons = list(told["reasons"])
    if 0 < far < least:
        reasons.insert(
            0,
            f"below threshold {least}: storage alone has {far} tokens (policy.prefetch_min_tokens)",
        )
    settings = {
        "write": policy.name.name,
        "write_after_hits": policy.write_after_hits,
        "eviction": policy.eviction.name,
        "prefetch": policy.prefetch.name,
        "prefetch_min_tokens": least,
        "verify": verify,
    }
    return {**told, "policy": settings, "reasons": reasons}


def _counts(flags: Bools) -> dict[str, int | None]:
    missing = np.flatnonzero(~flags)
    return {
        "looked_up": len(flags),
        "present": int(np.count_nonzero(flags)),
        "first_missing": int(missing[0]) if len(missing) else None,
    }
