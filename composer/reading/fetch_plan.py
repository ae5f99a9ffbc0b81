"""What is to be read from storage for a prompt, and in which parts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from composer.group import Reservation
from composer.reading.landing import Wanted
from composer.reading.lookup import Prompt, Tiers
from composer.record import record

PART_BYTES = 128 << 20  # of pages: a store's full speed, and few calls for large pages


@record
class Piece:
    """Pages of the prompt, in order, and the host slot of each."""

    pages: Sequence[int]
    slots: list[int]


Part = Mapping[str, Piece]  # by index space


@record
class FetchPlan:
    """What is to be fetched of a prompt.

    Attributes:
        prompt: Whose pages they are.
        num_pages: Prefix that is restorable once all has arrived.
        wanted: Index space -> page hashes that the prefix needs.
        pages: Index space -> pages of the prompt to read.
        slots: Index space -> host slots for them, taken.
    """

    prompt: Prompt
    num_pages: int
    wanted: Wanted
    pages: Mapping[str, list[int]]
    slots: Reservation

    def parts(self, tiers: Tiers) -> list[Part]:
        """Pages in prefix order, some megabytes a part; what trails comes with the last of them."""
        spaces, host = tiers.plan.spaces, tiers.host
        pieces = {space: Piece(self.pages[space], slots) for space, slots in self.slots.items()}
        paged = {space: pieces[space] for space in host.page_spaces if space in pieces}
        page_bytes = sum(spaces[space].host_slot_bytes for space in host.page_spaces) or 1
        step = max(PART_BYTES // page_bytes, 1)
        pages = sorted(set().union(*(one.pages for one in paged.values())))
        groups = (pages[start : start + step] for start in range(0, len(pages), step))
        parts = [
            {space: _between(one, group[0], group[-1]) for space, one in paged.items()}
            for group in groups
        ]
        parts = [{space: one for space, one in part.items() if one.pages} for part in parts]
        trailing = {s: one for s, one in pieces.items() if s not in paged and one.pages}
        if trailing and not parts:
            parts.append({})
        if trailing:
            parts[-1].update(trailing)
        return list(parts)


def _between(one: Piece, first: int, last: int) -> Piece:
    begin, end = bisect_left(one.pages, first), bisect_right(one.pages, last)
    return Piece(one.pages[begin:end], one.slots[begin:end])
