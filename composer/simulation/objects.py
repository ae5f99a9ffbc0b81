"""Storage objects that have a name and a size, and no bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from composer.objects import ArenaObjects, ReadCheck, Slots
from composer.storage import PageObjects


class IndexObjects(ArenaObjects):
    """Objects of an arena without payload: nothing is sealed, and what is found can be trusted."""

    def seal(
        self,
        scope: str,
        slots: Slots,
        page_hashes: Sequence[bytes],
        keys: list[str] | None = None,
    ) -> PageObjects:
        return self._objects(scope, slots, page_hashes, keys)

    def blank(self, scope: str, slots: Slots, page_hashes: Sequence[bytes]) -> PageObjects:
        return self._objects(scope, slots, page_hashes)

    def wipe(self, slots: Sequence[int]) -> None:
        """There is nothing in a slot."""

    def check(
        self,
        scope: str,
        slots: Slots,
        page_hashes: Sequence[bytes],
        num_bytes: npt.NDArray[np.int64],
    ) -> ReadCheck:
        """Only what storage has lost is refused."""
        del scope, slots, page_hashes
        ok = num_bytes == self.object_bytes
        missing = int(np.count_nonzero(~ok))
        return ReadCheck(ok, {"missing": missing} if missing else {})

    def _objects(
        self,
        scope: str,
        slots: Slots,
        page_hashes: Sequence[bytes],
        keys: list[str] | None = None,
    ) -> PageObjects:
        del slots
        names = self.keys(scope, page_hashes) if keys is None else keys
        return PageObjects(names, np.empty((len(names), 0), np.int64), self._part_bytes)

    @cached_property
    def _part_bytes(self) -> npt.NDArray[np.int64]:
        return np.array([self.object_bytes], dtype=np.int64)
