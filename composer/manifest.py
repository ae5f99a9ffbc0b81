"""A readable text beside the objects of each namespace, so that a miss can be explained later.

It says what the namespace is a digest of, under a key that no page can have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from composer.arena import ArenaSpec
from composer.keys import manifest_key, namespace_digest
from composer.storage import PageObjects

MANIFEST_BYTES = 1 << 16  # of every one, padded with spaces: whoever reads it knows the size


class Manifests:
    """The manifests of some arenas, ready to be put.

    Attributes:
        objects: One object for each namespace; a text that does not fit is left out.
    """

    def __init__(self, arenas: Iterable[ArenaSpec]) -> None:
        texts = {arena.namespace: _text(arena.manifest) for arena in arenas}
        texts = {name: text for name, text in texts.items() if len(text) <= MANIFEST_BYTES}
        self._memory = np.full((max(len(texts), 1), MANIFEST_BYTES), ord(" "), np.uint8)
        for row, text in zip(self._memory, texts.values(), strict=False):
            row[: len(text)] = np.frombuffer(text, np.uint8)
            row[-1] = ord("\n")
        start = self._memory.ctypes.data
        addresses = start + np.arange(len(texts), dtype=np.int64)[:, None] * MANIFEST_BYTES
        keys = [manifest_key(name) for name in texts]
        self.objects = PageObjects(keys, addresses, np.array([MANIFEST_BYTES], np.int64))

    @property
    def region(self) -> tuple[int, int]:
        """Address and bytes, for registration."""
        return self._memory.ctypes.data, self._memory.nbytes


def parse_manifest(data: bytes, namespace: str) -> dict[str, Any] | None:
    """The manifest of a namespace; None where the bytes are not it."""
    try:
        manifest = json.loads(data)
    except ValueError:
        return None
    if not isinstance(manifest, dict) or namespace_digest(manifest) != namespace:
        return None
    return manifest


def _text(manifest: Mapping[str, object]) -> bytes:
    return (json.dumps(manifest, indent=1) + "\n").encode()
