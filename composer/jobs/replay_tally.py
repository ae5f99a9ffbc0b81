"""What a replay saw and moved; the tallies of several processes add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from composer.reading.lookup import TIERS

MOST_DETAILS = 10  # mismatches told one by one


@dataclass
class Tally:
    """What a replay has seen. ``add`` joins the tallies of several processes.

    Attributes:
        shortened_by: Restores that were cut, by what cut them.
        cut_tokens: Tokens that some tier had and these restores could not use.
    """

    requests: int = 0
    unserved: int = 0
    input_tokens: int = 0
    hit_tokens: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(TIERS, 0)))
    far_tokens: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(TIERS, 0)))
    shortened_by: Counter[str] = field(default_factory=Counter)
    cut_tokens: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    pages_verified: int = 0
    states_verified: int = 0
    mismatches: int = 0
    details: list[str] = field(default_factory=list)
    checkpoints: int = 0
    incomplete_checkpoints: int = 0

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        for name, value in vars(other).items():
            own = getattr(self, name)
            if isinstance(own, Counter):
                own.update(value)
            else:
                setattr(self, name, own + value)
        del self.details[MOST_DETAILS:]


@dataclass
class Outcome:
    """What one process saw and moved: bytes and seconds by direction, GB/s of a plain memcpy."""

    tally: Tally = field(default_factory=Tally)
    moved: dict[str, tuple[int, float]] = field(default_factory=dict)
    memcpy_gb_s: float = 0.0
    objects: int | None = None
    counters: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        """Join the outcome of a later process on the same store."""
        self.tally.add(other.tally)
        for name, (num_bytes, seconds) in other.moved.items():
            before = self.moved.get(name, (0, 0.0))
            self.moved[name] = (before[0] + num_bytes, before[1] + seconds)
        self.memcpy_gb_s = max(self.memcpy_gb_s, other.memcpy_gb_s)
        self.objects = other.objects
        self.counters.update(other.counters)
