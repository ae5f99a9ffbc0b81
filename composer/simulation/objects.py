"""Storage objects that have a name and a size, and no bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from composer.objects import ArenaObjects, ReadCheck
from composer.storage import PageObjects


class IndexObjects(ArenaObjects):
    """Objects of an arena without payload: nothing is sealed, and what is found can be trusted."""

    def seal(self, scope: str, slots: Sequence[int], page_hashes: Sequence[bytes]) -> PageObjects:
        return self._objects(scope, slots, page_hashes)

    def blank(self, scope: str, slots: Sequence[int], page_hashes: Sequence[bytes]) -> PageObjects:
        return self._objects(scope, slots, page_hashes)

    def wipe(self, slots: Sequence[int]) -> None:
        """There is nothing in a slot."""

    def check(
        self,
        scope: str,
        slots: Sequence[int],
        page_hashes: Sequence[bytes],
        num_bytes: npt.NDArray[np.int64],
    ) -> ReadCheck:
        """Only what storage has lost is refused."""
        del scope, slots, page_hashes
        ok = num_bytes == self.object_bytes
        missing = int(np.count_nonzero(~ok))
        return ReadCheck(ok, {"missing": missing} if missing else {})

    def _objects(
        self, scope: str, slots: Sequence[int], page_hashes: Sequence[bytes]
    ) -> PageObjects:
        nowhere = np.empty((len(slots), 0), dtype=np.int64)
        return PageObjects(self.keys(scope, page_hashes), nowhere, self._part_bytes)

    @cached_property
    def _part_bytes(self) -> npt.NDArray[np.int64]:
        return np.array([self.object_bytes], dtype=np.int64)
