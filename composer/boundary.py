"""Which prefix lengths are restorable, given what is present. Pure and vectorised.

The answer is a set of lengths, never a minimum of maxima: each pool is asked again at the very
length that the others allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Requirement:
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
        num_pages = len(self.present)
        allowed = np.ones(num_pages + 1, dtype=np.bool_)
        position = np.arange(num_pages)
        last_gap = np.maximum.accumulate(np.where(self.present, -1, position))
        run = position - last_gap  # present pages in a row that end here
        needed = position + 1
        if self.window_pages is not None:
            needed = np.minimum(needed, self.window_pages)
        allowed[1:] = run >= needed
        return allowed


def restorable_lengths(requirements: Sequence[Requirement], num_pages: int) -> Bools:
    """Per length 0..num_pages: whether every requirement holds there. Length 0 always does."""
    lengths = np.ones(num_pages + 1, dtype=np.bool_)
    for requirement in requirements:
        lengths &= requirement.allowed()
    return lengths


def longest(lengths: Bools, limit: int | None = None) -> int:
    """The greatest restorable length, at most ``limit``."""
    return int(np.flatnonzero(lengths[: None if limit is None else limit + 1])[-1])


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
