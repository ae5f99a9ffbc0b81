"""What became of restores: found, read, refused and loaded are told apart."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np

from composer.controller import PoolTransferResult
from composer.record import record

NUM_REPORTS = 64


@record
class Report:
    """What became of one match.

    Attributes:
        found_pages: Length of the prefix that was found.
        loaded_pages: Length of the prefix that is in the device tier.
        cut_by: As ``Lease.shortened_by``.
        asked: Index space -> slots that were to be read from storage.
        read: Index space -> slots read from there, and verified.
        refused: Storage object -> why it could not be read or trusted -> how many.
    """

    found_pages: int
    loaded_pages: int
    cut_by: str | None
    asked: Mapping[str, int]
    read: Mapping[str, int]
    refused: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(
        cls, found: int, loaded: int, cut_by: str | None, reads: Sequence[PoolTransferResult]
    ) -> Report:
        """A report of a restore that read this from storage."""
        if not reads:
            return cls(found, loaded, cut_by, {}, {}, {})
        asked: Counter[str] = Counter()
        read: Counter[str] = Counter()
        refused: dict[str, Counter[str]] = {}
        for one in reads:
            asked[one.pool] += len(one.ok)
            read[one.pool] += int(np.count_nonzero(one.ok))
            for name, why in one.refused.items():
                refused.setdefault(name, Counter()).update(why)
        reasons = {name: dict(why) for name, why in refused.items() if why}
        return cls(found, loaded, cut_by, dict(asked), dict(read), reasons)


class Reports:
    """The last few reports, by the hash of the prompt's last page."""

    def __init__(self) -> None:
        self._reports: OrderedDict[bytes, Report] = OrderedDict()
        self._lock = Lock()

    def add(self, page_hashes: Sequence[bytes], report: Report) -> None:
        if page_hashes:
            with self._lock:
                self._reports[page_hashes[-1]] = report
                self._reports.move_to_end(page_hashes[-1])
                if len(self._reports) > NUM_REPORTS:
                    self._reports.popitem(last=False)

    def get(self, page_hashes: Sequence[bytes]) -> Report | None:
        """The last report of a prompt; None: it was none of the last few."""
        with self._lock:
            return self._reports.get(page_hashes[-1]) if page_hashes else None
