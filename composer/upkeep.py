"""What a stack does to storage beside reading and writing pages: counts, clears, explains."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from composer.guard import Guard
from composer.keys import is_manifest
from composer.manifest import Manifests
from composer.objects import ArenaObjects
from composer.storage import StorageBackend

MANIFESTS_S = 60.0  # a store may have lost them


class Upkeep:
    """Looks after the objects of one stack's namespaces.

    Attributes:
        manifests: What tells others about them.
    """

    def __init__(self, objects: Sequence[ArenaObjects], guard: Guard) -> None:
        self._objects, self._guard = tuple(objects), guard
        self.manifests = Manifests(one.arena.spec for one in self._objects)
        self._next = 0.0

    def explain(self, backend: StorageBackend) -> None:
        """Put the manifests beside what is written, now and then, where others may look."""
        now = monotonic()
        if now < self._next or not can_be_visited(backend):
            return
        self._next = now + MANIFESTS_S
        self._guard.call("put", partial(backend.put, self.manifests.objects), self._keep)

    def _keep(self, ended: Future[Any]) -> None:
        """Let the manifests' memory live as long as a call that was given up."""
        manifests = self.manifests
        ended.add_done_callback(lambda _: manifests)

    def renew(self) -> None:
        """There is another store, or it was cleared."""
        self._next = 0.0

    def count(self, backend: StorageBackend) -> int | None:
        """Objects there are; None where they cannot be listed."""
        namespaces = {one.arena.spec.namespace for one in self._objects}
        listed = [self._keys(backend, f"{name}/") for name in namespaces]
        if None in listed:
            return None
        return sum(not is_manifest(key) for keys in listed for key in keys or ())

    def remove(self, backend: StorageBackend, scope: str | None) -> dict[str, int | None]:
        """Remove a scope's objects; None: those of every scope."""
        removed, left = 0, 0
        for objects in self._objects:
            every = f"{objects.arena.spec.namespace}/"
            keys = self._keys(backend, every if scope is None else objects.prefix(scope)[0])
            if keys is None:
                return {"storage_removed": None, "storage_left": None}
            gone = self._guard.call("remove", partial(backend.remove, keys)) if keys else None
            for index, key in enumerate(keys):
                is_gone = gone is not None and bool(gone[index])
                removed += is_gone and not is_manifest(key)
                left += not is_gone and not is_manifest(key)
        self.renew()
        return {"storage_removed": removed, "storage_left": left}

    def discard(self, backend: StorageBackend, keys: Sequence[str]) -> int:
        """Remove objects that hold other bytes than their keys say; how many are gone.

        They can be written again then.
        """
        gone = self._guard.call("remove", partial(backend.remove, keys, force=True))
        return 0 if gone is None else int(gone.sum())

    def _keys(self, backend: StorageBackend, prefix: str) -> list[str] | None:
        return self._guard.call("keys", partial(backend.keys, prefix))


def can_be_visited(backend: StorageBackend) -> bool:
    """Whether its objects outlive the process that wrote them."""
    return hasattr(type(backend), "visiting")
