"""What a page must hold: bytes that are a pure function of pool, layer, buffer, page and shard.

A pool's buffer has one random image of a whole slot, different at every place; a page's bytes are
that image, each word combined with 64 bits of the page's hash. Two pages, layers, buffers or
shards never look alike, and a page is made at the speed of memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from composer.device_pools import DevicePoolGroup
from composer.pool import WORDS, BufferView, PoolEntry


class PagePattern:
    """Fills and checks device slots."""

    def __init__(self, device: DevicePoolGroup) -> None:
        self._pools: dict[str, list[_BufferPattern]] = {name: [] for name in device.spaces}
        for entry in device.entries.values():
            if not entry.spec.prefix_cacheable:
                continue  # scratch: no tier keeps it, and nobody may expect what it holds
            for name, view in entry.buffers.items():
                pattern = _BufferPattern(entry, name, view)
                self._pools[entry.spec.index_space].append(pattern)

    def fill(self, space: str, slots: Sequence[int], page_hashes: Sequence[bytes]) -> None:
        """Write what the pages must hold into their device slots, all pools of the space."""
        for pattern in self._pools[space]:
            for slot, page_hash in zip(slots, page_hashes, strict=True):
                pattern.fill(slot, page_hash)

    def mismatches(
        self,
        space: str,
        slots: Sequence[int],
        page_hashes: Sequence[bytes],
        ignore: Sequence[str] = (),
    ) -> list[str]:
        """Buffers with wrong bytes, as text, one per slot; pools in ``ignore`` are left out."""
        return [
            f"{pattern.name} of page {page_hash.hex()[:16]} in device slot {slot} of {space}"
            for pattern in self._pools[space]
            if pattern.pool not in ignore
            for slot, page_hash in zip(slots, page_hashes, strict=True)
            if not pattern.is_right(slot, page_hash)
        ]


class _BufferPattern:
    """One buffer of one pool."""

    def __init__(self, entry: PoolEntry, buffer: str, view: BufferView) -> None:
        spec = entry.spec
        self.pool, self.name = spec.name, f"{spec.name}.{buffer}"
        self._view = view
        self._shape = (view.num_layers, *view.layers[0].shape[2:])
        num_bytes = int(np.prod(self._shape)) * view.word_bytes
        seed = hashlib.sha256(f"{self.name}/{spec.shard}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
        words = rng.integers(-(2**63), 2**63 - 1, size=-(-num_bytes // 8), dtype=np.int64)
        self._image = torch.from_numpy(words)
        self._scratch = torch.empty_like(self._image)
        flat = self._scratch.view(torch.uint8)[:num_bytes].view(WORDS[view.word_bytes])
        self._page = flat.view(self._shape)
        self._key = lru_cache(maxsize=65536)(self._make_key)

    def fill(self, slot: int, page_hash: bytes) -> None:
        page = self._expected(page_hash)
        for tensor, part in self._layers(page):
            tensor[:, slot].copy_(part)

    def is_right(self, slot: int, page_hash: bytes) -> bool:
        page = self._expected(page_hash)
        return all(
            torch.equal(tensor[:, slot].to("cpu"), part) for tensor, part in self._layers(page)
        )

    def _layers(self, page: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        sizes = [tensor.shape[0] for tensor in self._view.layers]
        return list(zip(self._view.layers, page.split(sizes), strict=True))

    def _expected(self, page_hash: bytes) -> torch.Tensor:
        torch.bitwise_xor(self._image, self._key(page_hash), out=self._scratch)
        return self._page

    def _make_key(self, page_hash: bytes) -> int:
        digest = hashlib.sha256(self.name.encode() + page_hash).digest()
        return int.from_bytes(digest[:8], "little", signed=True)
