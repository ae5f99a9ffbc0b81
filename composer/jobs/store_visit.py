"""A visit to a store: its objects by namespace, scope, name and shard, read and judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from composer.errors import ConfigError
from composer.keys import is_manifest, manifest_key, parse_key
from composer.manifest import MANIFEST_BYTES, parse_manifest
from composer.objects import judge
from composer.registry import BACKENDS
from composer.schema import CliConfig
from composer.storage import FAILED, MISSING, PageObjects, StorageBackend

Group = tuple[str, str, str, str]  # namespace, scope, object, shard: objects of one size
BATCH_BYTES = 64 << 20
BATCH = 1024  # keys of one call


@contextmanager
def visiting(config: CliConfig) -> Iterator[Visit]:
    """Open the configured store without adding anything to it.

    Raises:
        ConfigError: Its objects die with a process, or it would be a new one.
    """
    name = BACKENDS.name_of(config.backend)
    backend, params = BACKENDS.get(name), BACKENDS.params(config.backend)
    if not hasattr(backend, "visiting"):
        reason = f"what backend '{name}' holds dies with its process"
        raise ConfigError.of("backend.name", reason, "Use backend=file or backend=mooncake")
    opened = backend(backend.visiting(params))
    try:
        yield Visit(opened)
    finally:
        opened.close()


class Visit:
    """What a store held when the visit began."""

    def __init__(self, backend: StorageBackend) -> None:
        self._backend = backend
        self._memory = np.zeros(max(BATCH_BYTES, MANIFEST_BYTES), np.uint8)
        backend.register([(self._memory.ctypes.data, self._memory.nbytes)])
        self._keys: dict[Group, list[str]] = defaultdict(list)
        self.foreign = 0  # keys of somebody else
        for key in backend.keys(""):
            try:
                parts = parse_key(key)
            except ValueError:
                self.foreign += 1
                continue
            if not is_manifest(key):
                group = (parts.namespace, parts.scope, parts.object, parts.shard)
                self._keys[group].append(key)

    def groups(self, namespace: str, scope: str | None) -> list[Group]:
        """Groups of namespaces that begin so, and of one scope (None: of all)."""
        return sorted(
            group
            for group in self._keys
            if group[0].startswith(namespace) and scope in (None, group[1])
        )

    def count(self, group: Group) -> int:
        """Objects of a group."""
        return len(self._keys[group])

    def describe(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Namespaces: their manifests, and objects and bytes by scope."""
        found: dict[str, dict[str, Any]] = {}
        for group in groups:
            entry = found.setdefault(
                group[0],
                {"namespace": group[0], "manifest": self.manifest(group[0]), "scopes": {}},
            )
            size = self._size(group)
            scope = entry["scopes"].setdefault(group[1], {"objects": 0, "bytes": 0})
            scope["objects"] += self.count(group)
            scope["bytes"] += 0 if size is None else size * self.count(group)
        return list(found.values())

    def manifest(self, namespace: str) -> dict[str, Any] | None:
        """What the namespace is a digest of; None where the store has no text of it."""
        sizes = self._backend.get(self._objects([manifest_key(namespace)], MANIFEST_BYTES))
        if sizes[0] != MANIFEST_BYTES:
            return None
        return parse_manifest(self._memory[:MANIFEST_BYTES].tobytes(), namespace)

    def idle_s(self, namespaces: Iterable[str]) -> dict[str, float]:
        """Seconds since any object of each namespace was written or read.

        Raises:
            ConfigError: The backend cannot tell.
        """
        if not hasattr(self._backend, "idle_s"):
            raise ConfigError.of(
                "job.older_than_s",
                "is set, and this store does not tell when an object was used",
                "Leave it out, and name what is still in use in job.keep",
            )
        return {name: float(self._backend.idle_s(f"{name}/")) for name in namespaces}

    def verify(self, groups: Sequence[Group], *, remove: bool) -> dict[str, int]:
        """Read every object; how many are wrong, by reason."""
        wrong: Counter[str] = Counter()
        for group in groups:
            size = self._size(group)
            if size is None or size > len(self._memory):
                continue
            for keys in _batches(self._keys[group], len(self._memory) // max(size, 1)):
                bad = []
                sizes = self._backend.get(self._objects(keys, size)).tolist()
                for index, (key, found) in enumerate(zip(keys, sizes, strict=True)):
                    reason = self._reason(index, key, found, size)
                    if reason is not None:
                        wrong[reason] += 1
                        bad.append(key)
                if remove and bad:
                    self._backend.remove(bad, force=True)
        return dict(wrong)

    def remove(self, groups: Sequence[Group]) -> tuple[int, int]:
        """Remove objects, and the manifests of namespaces that are empty then.

        Returns:
            How many are gone, and how many stayed, e.g. under a lease.
        """
        removed = left = 0
        for group in groups:
            stayed: list[str] = []
            for keys in _batches(self._keys[group], BATCH):
                gone = self._backend.remove(keys).tolist()
                stayed += [key for key, ok in zip(keys, gone, strict=True) if not ok]
            removed, left = removed + self.count(group) - len(stayed), left + len(stayed)
            self._keys[group] = stayed
        for namespace in {group[0] for group in groups}:
            if not any(keys for group, keys in self._keys.items() if group[0] == namespace):
                self._backend.remove([manifest_key(namespace)], force=True)
        return removed, left

    def _reason(self, index: int, key: str, found: int, size: int) -> str | None:
        """Why an object that was read is wrong; None: it is not, or was evicted meanwhile."""
        if found == MISSING:
            return None
        if found != size:
            return "failed" if found == FAILED else "wrong_size"
        return judge(key, self._memory[index * size : (index + 1) * size])

    def _size(self, group: Group) -> int | None:
        """Bytes of most objects of a group; None: they are all gone."""
        sizes = self._backend.sizes(self._keys[group][:3]).tolist()
        found = Counter(size for size in sizes if size != MISSING)
        return found.most_common(1)[0][0] if found else None

    def _objects(self, keys: list[str], size: int) -> PageObjects:
        addresses = self._memory.ctypes.data + np.arange(len(keys), dtype=np.int64)[:, None] * size
        return PageObjects(keys, addresses, np.array([size], np.int64))


def _batches(keys: list[str], count: int) -> Iterator[list[str]]:
    step = max(1, min(count, BATCH))
    for at in range(0, len(keys), step):
        yield keys[at : at + step]
