"""What the faulty backend does to the bytes of objects that were read."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from composer.backends.faulty_rules import Bools, Drawn, Kind, Rules, arena_of
from composer.storage import PageObjects


@dataclass
class Older:
    """The first objects put of each arena: what a confused store may give out as others."""

    _kept: dict[tuple[str, ...], list[tuple[str, bytes]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, objects: PageObjects, taken: Bools) -> None:
        """Remember two of an arena: at least one of them is another one than any that is read."""
        with self._lock:
            for index in np.flatnonzero(taken).tolist():
                kept = self._kept.setdefault(arena_of(objects.keys[index]), [])
                if len(kept) < 2 and objects.keys[index] not in (key for key, _ in kept):
                    kept.append((objects.keys[index], read(objects, index)))

    def than(self, key: str, num_bytes: int) -> bytes | None:
        """Bytes of another object of the key's arena; None: there is none of that size."""
        with self._lock:
            kept = self._kept.get(arena_of(key), [])
            others = (data for name, data in kept if name != key and len(data) == num_bytes)
            return next(others, None)


@dataclass
class Reading:
    """Objects that are being read: made before the read, tampered with behind it.

    Attributes:
        sizes: What the read answered.
    """

    objects: PageObjects
    rules: Rules
    older: Older
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _before: dict[int, bytes] = field(default_factory=dict)

    def expect(self, drawn: Sequence[Drawn]) -> None:
        """Remember what lies where a read will be cut short."""
        for one in drawn:
            if one.kind is Kind.short:
                for index in np.flatnonzero(one.chosen).tolist():
                    self._before[index] = read(self.objects, index)

    def tamper(self, drawn: Drawn) -> int:
        """Do it to those chosen objects that were read in full.

        Returns:
            To how many.
        """
        ways: dict[Kind, Callable[[int], bool]] = {
            Kind.short: self._short,
            Kind.flip: self._flip,
            Kind.stale: self._stale,
        }
        chosen = np.flatnonzero(drawn.chosen & self._full).tolist()
        if drawn.kind is Kind.swap:
            return self._swap(chosen)
        return sum(ways[drawn.kind](index) for index in chosen)

    @property
    def _full(self) -> Bools:
        return np.asarray(self.sizes == self.objects.object_bytes)

    def _short(self, index: int) -> bool:
        size = self.rules.number(self.objects.object_bytes, self.objects.keys[index])
        write(self.objects, index, read(self.objects, index)[:size] + self._before[index][size:])
        self.sizes[index] = size
        return True

    def _flip(self, index: int) -> bool:
        data = bytearray(read(self.objects, index))
        bit = self.rules.number(8 * len(data), self.objects.keys[index])
        data[bit // 8] ^= 1 << bit % 8
        write(self.objects, index, bytes(data))
        return True

    def _stale(self, index: int) -> bool:
        data = self.older.than(self.objects.keys[index], self.objects.object_bytes)
        if data is not None:
            write(self.objects, index, data)
        return data is not None

    def _swap(self, chosen: list[int]) -> int:
        """Exchange each with the next one that has not been exchanged."""
        left = np.flatnonzero(self._full).tolist()
        num_swapped = 0
        for one in chosen:
            if one not in left or len(left) < 2:
                continue
            other = left[(left.index(one) + 1) % len(left)]
            data = read(self.objects, one)
            write(self.objects, one, read(self.objects, other))
            write(self.objects, other, data)
            left = [index for index in left if index not in (one, other)]
            num_swapped += 2
        return num_swapped


def read(objects: PageObjects, index: int) -> bytes:
    """The memory of one object, its parts one after another."""
    row, sizes = objects.addresses[index].tolist(), objects.part_bytes.tolist()
    return b"".join(map(ctypes.string_at, row, sizes))


def write(objects: PageObjects, index: int, data: bytes) -> None:
    """Overwrite the memory of one object."""
    start = 0
    row, sizes = objects.addresses[index].tolist(), objects.part_bytes.tolist()
    for address, size in zip(row, sizes, strict=True):
        ctypes.memmove(address, data[start : start + size], size)
        start += size
