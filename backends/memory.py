"""Pages in a dict of this process: the reference backend, and the one most tests use."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from composer.backends.common import Calls, Counts, RegisteredMemory
from composer.storage import MISSING, PageObjects

CLOSE_TIMEOUT_S = 10.0


class MemoryBackend:
    """Keeps copies of objects until ``close``; no eviction, no limit."""

    @dataclass
    class Params:
        """Nothing to set."""

    def __init__(self, params: Params | None = None) -> None:
        del params
        self._objects: dict[str, bytes] = {}
        self._memory = RegisteredMemory()
        self._calls = Calls("memory")
        self._counts = Counts()

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Remember the ranges; a copy needs nothing else."""
        with self._calls:
            self._memory.add(buffers)

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each key was put."""
        with self._calls:
            return np.array([key in self._objects for key in keys], np.bool_)

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Keep a copy of each object whose key is new."""
        part_bytes = objects.part_bytes.tolist()
        with self._calls:
            self._memory.check(objects)
            num_new = 0
            for key, addresses in zip(objects.keys, objects.addresses.tolist(), strict=True):
                if key in self._objects:
                    continue
                parts = map(ctypes.string_at, addresses, part_bytes)
                self._objects.setdefault(key, b"".join(parts))
                num_new += 1
        self._counts.add(put_bytes=num_new * objects.object_bytes)
        return np.ones(len(objects.keys), np.bool_)

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Copy each object of the right size to its parts."""
        part_bytes, object_bytes = objects.part_bytes.tolist(), objects.object_bytes
        sizes = np.full(len(objects.keys), MISSING, np.int64)
        with self._calls:
            self._memory.check(objects)
            for index, key in enumerate(objects.keys):
                stored = self._objects.get(key)
                if stored is None:
                    continue
                sizes[index] = len(stored)
                if len(stored) == object_bytes:
                    _scatter(stored, objects.addresses[index].tolist(), part_bytes)
        self._counts.add(get_bytes=int(np.count_nonzero(sizes == object_bytes)) * object_bytes)
        return sizes

    def keys(self, prefix: str = "") -> list[str]:
        """Keys that start with ``prefix``."""
        with self._calls:
            return [key for key in list(self._objects) if key.startswith(prefix)]

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Bytes of each object."""
        with self._calls:
            found = (self._objects.get(key) for key in keys)
            return np.array([MISSING if o is None else len(o) for o in found], np.int64)

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        """Forget objects; always True."""
        del force
        with self._calls:
            for key in keys:
                self._objects.pop(key, None)
        return np.ones(len(keys), np.bool_)

    def counters(self) -> Mapping[str, int]:
        """Bytes put and got."""
        return self._counts.snapshot()

    def close(self) -> None:
        """Forget everything."""
        self._calls.shut()
        self._calls.wait(CLOSE_TIMEOUT_S)
        self._objects.clear()


def _scatter(stored: bytes, addresses: list[int], part_bytes: list[int]) -> None:
    """Copy consecutive pieces of ``stored`` to ``addresses``."""
    begin = 0
    for address, num_bytes in zip(addresses, part_bytes, strict=True):
        ctypes.memmove(address, stored[begin : begin + num_bytes], num_bytes)
        begin += num_bytes
