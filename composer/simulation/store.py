"""Storage as an index: which objects it has and how large they are, without their bytes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from composer.boundary import all_true
from composer.storage import MISSING, PageObjects


class IndexStore:
    """A storage backend that keeps names and sizes; the object used longest ago goes first.

    A put, a get and an exists are uses, as leases of a real store make them.

    Attributes:
        num_bytes: Of all objects that it has.
        capacity_bytes: Most that it has; None: no limit.
        calls: Calls by name.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes, self.num_bytes = capacity_bytes, 0
        self.calls: Counter[str] = Counter()
        self._order: OrderedDict[str, int] = OrderedDict()  # the object used longest ago first
        # Without a limit no order is needed, and a plain dict is half as large.
        self._sizes: dict[str, int] = {} if capacity_bytes is None else self._order
        self._num_evicted = self._num_refused = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """No memory is touched."""

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        self.calls["exists"] += 1
        known = self._sizes
        found = np.fromiter(map(known.__contains__, keys), np.bool_, len(keys))
        self._use(keys)
        return found

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Take each object that is new; one that is larger than the store is refused."""
        self.calls["put"] += 1
        size, known = objects.object_bytes, self._sizes
        if self.capacity_bytes is not None and size > self.capacity_bytes:
            self._num_refused += len(objects.keys)
            return np.zeros(len(objects.keys), np.bool_)
        for key in objects.keys:
            if key not in known:
                known[key] = size
                self.num_bytes += size
        self._use(objects.keys)
        self._make_room()
        return all_true(len(objects.keys))

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        self.calls["get"] += 1
        sizes = self.sizes(objects.keys)
        self._use(objects.keys)
        return sizes

    def keys(self, prefix: str = "") -> list[str]:
        return [key for key in self._sizes if key.startswith(prefix)]

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        known = self._sizes
        return np.fromiter((known.get(key, MISSING) for key in keys), np.int64, len(keys))

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        del force
        for key in keys:
            self.num_bytes -= self._sizes.pop(key, 0)
        return np.ones(len(keys), np.bool_)

    def counters(self) -> Mapping[str, int]:
        return {"evicted": self._num_evicted, "refused": self._num_refused}

    def close(self) -> None:
        self._sizes.clear()
        self.num_bytes = 0

    def _use(self, keys: Sequence[str]) -> None:
        """Make those that there are the last to go; without a limit none goes. The first goes last.

        A prefix whose head is gone is of no use, so that its tail has to go first.
        """
        if self.capacity_bytes is not None:
            for key in reversed(keys):
                if key in self._order:
                    self._order.move_to_end(key)

    def _make_room(self) -> None:
        while self.capacity_bytes is not None and self.num_bytes > self.capacity_bytes:
            _, size = self._order.popitem(last=False)
            self.num_bytes -= size
            self._num_evicted += 1
