"""What a stack does to storage beside reading and writing pages: counts, and clears."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from composer.guard import Guard
from composer.objects import ArenaObjects
from composer.storage import StorageBackend


class Upkeep:
    """Looks after the objects of one stack's namespaces."""

    def __init__(self, objects: Sequence[ArenaObjects], guard: Guard) -> None:
        self._objects, self._guard = tuple(objects), guard

    def count(self, backend: StorageBackend) -> int | None:
        """Objects there are; None where they cannot be listed."""
        namespaces = {one.arena.spec.namespace for one in self._objects}
        listed = [self._keys(backend, f"{name}/") for name in namespaces]
        return None if None in listed else sum(len(keys or ()) for keys in listed)

    def remove(self, backend: StorageBackend, scope: str | None) -> dict[str, int | None]:
        """Remove a scope's objects; None: those of every scope."""
        removed, left = 0, 0
        for objects in self._objects:
            every = f"{objects.arena.spec.namespace}/"
            keys = self._keys(backend, every if scope is None else objects.prefix(scope)[0])
            if keys is None:
                return {"storage_removed": None, "storage_left": None}
            gone = self._guard.call("remove", partial(backend.remove, keys)) if keys else None
            num_gone = 0 if gone is None else int(gone.sum())
            removed, left = removed + num_gone, left + len(keys) - num_gone
        return {"storage_removed": removed, "storage_left": left}

    def _keys(self, backend: StorageBackend, prefix: str) -> list[str] | None:
        return self._guard.call("keys", partial(backend.keys, prefix))
