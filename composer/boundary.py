"""Which prefix lengths are restorable, given what is present. Pure and vectorised.

The answer is a set of lengths, never a minimum of maxima: each pool is asked again at the very
length that the others allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


class Requirement(NamedTuple):
    """What one arena (or index space) must have for a prefix to be restorable.

    Attributes:
        name: For reports.
        present: Per page of the prompt, ``[num_pages]``.
        window_pages: Pages before a boundary that must be there; None: all of them.
    """

    name: str
    present: Bools
    window_pages: int | None

    def allowed(self) -> Bools:
        """Per length 0..num_pages: whether this requirement alone holds there."""
        present, window = self.present, self.window_pages
        num_pages = len(present)
        if window is None:
            allowed = np.zeros(num_pages + 1, dtype=np.bool_)
            allowed[: _head(present) + 1] = True
            return allowed
        allowed = np.empty(num_pages + 1, dtype=np.bool_)
        allowed[0] = True
        if window == 1:
            allowed[1:] = present
            return allowed
        held = np.zeros(num_pages + 1, dtype=np.int64)  # of the first pages
        present.cumsum(out=held[1:])
        needed = np.arange(num_pages + 1)
        needed[window:] = window
        held[window:] -= held[:-window].copy()  # of the window's pages
        return np.equal(held, needed, out=allowed)


def all_true(number: int) -> Bools:
    """So many times True. ``np.ones`` takes longer than what is done with a few pages."""
    return ~np.zeros(number, dtype=np.bool_)


def restorable_lengths(requirements: Sequence[Requirement], num_pages: int) -> Bools:
    """Per length 0..num_pages: whether every requirement holds there. Length 0 always does."""
    if not requirements:
        return all_true(num_pages + 1)
    lengths = requirements[0].allowed()
    for requirement in requirements[1:]:
        lengths &= requirement.allowed()
    return lengths


def longest(lengths: Bools, limit: int | None = None) -> int:
    """The greatest restorable length, at most ``limit``."""
    backwards = lengths[::-1] if limit is None else lengths[limit::-1]
    return len(backwards) - 1 - int(backwards.argmax())


def longest_restorable(
    requirements: Sequence[Requirement], num_pages: int, limit: int | None = None
) -> int:
    """The ``longest`` of the ``restorable_lengths``; of chains alone, how far all of them reach."""
    if any(one.window_pages is not None for one in requirements):
        return longest(restorable_lengths(requirements, num_pages), limit)
    reach = min((_head(one.present) for one in requirements), default=num_pages)
    return reach if limit is None else min(reach, limit)


def shortened_by(requirements: Sequence[Requirement], boundary: int) -> str | None:
    """The requirement that kept the prefix from being longer than ``boundary``.

    None where the first requirement (the anchor's) reaches no further either: then nothing was
    shortened, the prefix is simply not known.
    """
    if not requirements:
        return None
    reach = longest(requirements[0].allowed())
    if reach <= boundary:
        return None
    for requirement in requirements[1:]:
        if not requirement.allowed()[reach]:
            return requirement.name
    return requirements[0].name


def _head(present: Bools) -> int:
    """How many of the first pages are present."""
    first_gap = int(present.argmin()) if len(present) else 0
    return len(present) if len(present) and present[first_gap] else first_gap
