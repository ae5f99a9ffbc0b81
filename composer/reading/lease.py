"""What a caller holds: a restored prefix, and device slots to compute into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from composer.reading.report import Report


@dataclass
class Lease:
    """A restored prefix in the device tier, kept there until ``release``.

    Attributes:
        num_pages: Length of the prefix; ``num_tokens`` the same in tokens.
        pages: Index space -> device pages. All of the prefix's where the space keeps every page,
            the last ones before the boundary where it trails.
        states: Index space -> device state at the boundary. States are immutable: copy one into a
            working slot (``Stack.copy_state``) before going on from it.
        hit_tokens: Tokens by the fastest tier that held them.
        page_tiers: Per page, the index of that tier in ``composer.reading.lookup.TIERS``.
        report: What became of the match.
        shortened_by: What cut the prefix: an index space, or ``host_capacity`` or
            ``device_capacity``; None where nothing did.
        degraded: Optional pools that are missing for some page of the prefix.
    """

    num_pages: int
    num_tokens: int
    pages: Mapping[str, list[int]]
    states: Mapping[str, int]
    hit_tokens: Mapping[str, int]
    page_tiers: npt.NDArray[np.int8] = field(repr=False)
    report: Report = field(repr=False)
    shortened_by: str | None = None
    degraded: tuple[str, ...] = ()
    _release: Callable[[], None] | None = field(default=None, repr=False)
    _wait: Callable[[int | None], None] | None = field(default=None, repr=False)

    def wait(self, layer: int | None = None) -> None:
        """Return when what a layer reads (None: all of the prefix) is in the device tier.

        That is its rows of every pool, and those of the layer whose indices it uses. On CUDA the
        current stream is made to wait for them. Returns at once where ``restore`` waited.

        Args:
            layer: Its number in the whole model, on every pipeline stage.

        Raises:
            ValueError: This stage has no such layer, or the lease was released.
            LoadError: The prefix could not be loaded; release the lease and compute it.
        """
        if self._release is None:
            raise ValueError("this lease was released, and its pages may be another's")
        if self._wait is not None:
            self._wait(layer)

    def release(self) -> None:
        """Let the prefix be evicted again, once nothing loads it any more. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass
class Slots:
    """Device slots that a caller computes into, until they are committed or released.

    Attributes:
        pages: Index space -> device pages, one per page of new tokens in every space.
        states: One mapping index space -> device state per state asked for; empty mappings where
            the model has no states.
    """

    pages: dict[str, list[int]]
    states: list[dict[str, int]]
    _free: Callable[[Mapping[str, list[int]]], None] = field(repr=False)

    def release(self) -> None:
        """Give back what was not committed. Idempotent."""
        left = {space: list(ids) for space, ids in self.pages.items() if ids}
        for state in self.states:
            for space, slot in state.items():
                left.setdefault(space, []).append(slot)
        self.pages, self.states = {}, []
        self._free(left)

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
