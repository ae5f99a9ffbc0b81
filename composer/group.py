"""The host tier: one stretch of memory per arena, and the ids of every index space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from composer.arena import TRAILER_BYTES, ArenaSpec
from composer.errors import InvariantError
from composer.free_list import FreeList
from composer.layout import ALIGNMENT, Ints, Runs
from composer.plan import StackPlan, arena_bytes
from composer.pool import BufferView, PoolEntry, host_view

Reservation = dict[str, list[int]]  # index space -> ids


@dataclass(frozen=True)
class ObjectParts:
    """Where the parts of one storage object lie, padding and trailer included.

    Part ``i`` of slot ``s`` starts at ``address[i] + s * stride[i]``.
    """

    address: Ints
    stride: Ints
    num_bytes: Ints

    def addresses(self, slots: Sequence[int] | Ints) -> Ints:
        """Address of each part of each slot, ``[num_slots, num_parts]``."""
        ids = np.asarray(slots, dtype=np.int64)
        addresses = ids[:, None] * self.stride
        addresses += self.address  # in place: with many runs this is most of a page's cost
        return addresses


class HostArena:
    """Memory of one arena.

    Attributes:
        memory: uint8 ``[bytes]``; zero at first, so that padding is zero. Empty without payload.
        views: Pool -> buffer -> view; none without payload.
    """

    def __init__(
        self,
        spec: ArenaSpec,
        num_slots: int,
        *,
        pin_memory: bool = False,
        payload: bool = True,
    ) -> None:
        self.spec, self.num_slots = spec, num_slots
        self.views: dict[str, dict[str, BufferView]] = {}
        size = arena_bytes(spec, num_slots) if payload else 0
        self.memory = torch.zeros(size, dtype=torch.uint8, pin_memory=pin_memory)
        self.sections = spec.place(num_slots) if payload else ()
        self.bases: list[int] = []
        end = -self.memory.data_ptr() % ALIGNMENT
        for section in self.sections:
            self.bases.append(end)
            end += section.total_bytes
            end += -end % ALIGNMENT
        self._side = end  # behind the sections: one row of padding and trailer per slot
        for section, base in zip(self.sections, self.bases, strict=True):
            for block, place in zip(section.blocks, section.placements, strict=True):
                view = host_view(self.memory, base, block, place, num_slots)
                self.views.setdefault(block.pool, {})[block.buffer] = view

    @property
    def region(self) -> tuple[int, int]:
        """Address and bytes, for registration."""
        return self.memory.data_ptr(), self.memory.numel()

    @cached_property
    def parts(self) -> ObjectParts:
        """The parts of one object, in object order."""
        start = self.memory.data_ptr()
        if self.spec.is_record:
            record = np.array([self.spec.object_bytes], dtype=np.int64)
            return ObjectParts(np.array([start + self.bases[0]]), record, record)
        runs: list[Runs] = []
        paddings = [0 if section.is_record else section.padding_bytes for section in self.sections]
        paddings[-1] += TRAILER_BYTES
        row_bytes, done = sum(paddings), 0
        for section, base, padding in zip(self.sections, self.bases, paddings, strict=True):
            runs.append(_with_padding(section.runs, section.padding_bytes, section.is_record, base))
            if padding:
                runs.append(Runs(*(np.array([n]) for n in (self._side + done, row_bytes, padding))))
                done += padding
        return ObjectParts(
            np.concatenate([run.offset for run in runs]) + start,
            np.concatenate([run.stride for run in runs]),
            np.concatenate([run.num_bytes for run in runs]),
        )

    @cached_property
    def trailers(self) -> npt.NDArray[np.uint8]:
        """The trailer bytes of every slot, ``[num_slots, TRAILER_BYTES]``, a view."""
        parts = self.parts
        end = int(parts.address[-1] + parts.num_bytes[-1]) - self.memory.data_ptr()
        array = self.memory.numpy()[end - TRAILER_BYTES :]
        return np.lib.stride_tricks.as_strided(
            array, (self.num_slots, TRAILER_BYTES), (int(parts.stride[-1]), 1)
        )


def _with_padding(runs: Runs, padding: int, is_record: bool, base: int) -> Runs:
    moved = runs.shifted(base)
    if not (is_record and padding):
        return moved
    num_bytes = moved.num_bytes.copy()
    num_bytes[-1] += padding  # a record's padding follows its payload in memory
    return Runs(moved.offset, moved.stride, num_bytes)


class HostPoolGroup:
    """All host pools of a stack.

    Without ``payload`` there are ids and no memory: what takes and frees slots works, and there
    is nothing to copy.

    Attributes:
        entries: Pools by name; a pool that is never stored has none.
        spaces: Free list of each index space.
    """

    def __init__(self, plan: StackPlan, *, pin_memory: bool = False, payload: bool = True) -> None:
        self.plan = plan
        self.arenas = {
            (arena.space, arena.name): HostArena(
                arena,
                plan.spaces[arena.space].num_host_slots,
                pin_memory=pin_memory,
                payload=payload,
            )
            for arena in plan.arenas
        }
        self.spaces = {
            name: FreeList(f"host {name}", space.num_host_slots)
            for name, space in plan.spaces.items()
        }
        views: dict[str, dict[str, BufferView]] = {}
        for arena in self.arenas.values():
            for name, buffers in arena.views.items():
                views.setdefault(name, {}).update(buffers)
        self.entries = {
            pool.name: PoolEntry(pool, views[pool.name])
            for pool in plan.spec.pools
            if pool.name in views
        }

    @property
    def anchor(self) -> str | None:
        """The pool on which hits are counted."""
        return self.plan.spec.anchor

    @property
    def regions(self) -> list[tuple[int, int]]:
        """Address and bytes of every arena, each to be registered once."""
        return [arena.region for arena in self.arenas.values()]

    def arena(self, spec: ArenaSpec) -> HostArena:
        return self.arenas[spec.space, spec.name]

    def reserve(self, counts: Mapping[str, int]) -> Reservation | None:
        """Take slots of several index spaces, all of them or none."""
        return reserve(self.spaces, counts)

    def release(self, reservation: Mapping[str, Sequence[int]]) -> None:
        """Give slots back, once.

        Raises:
            InvariantError: A slot is not taken.
        """
        for space, ids in reservation.items():
            self.spaces[space].free(ids)


def reserve(spaces: Mapping[str, FreeList], counts: Mapping[str, int]) -> Reservation | None:
    """Ids of several index spaces, all of them or none (None).

    Raises:
        InvariantError: A count is negative; nothing is taken.
    """
    if negative := {space: count for space, count in counts.items() if count < 0}:
        raise InvariantError(f"slots to reserve: {negative}")
    if any(count > spaces[space].num_free for space, count in counts.items()):
        return None
    taken: Reservation = {}
    for space, count in counts.items():
        ids = spaces[space].allocate(count)
        if ids is not None:
            taken[space] = ids
    return taken
