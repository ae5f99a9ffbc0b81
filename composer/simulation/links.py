"""What movements between tiers would have taken: so long a call, so long a byte."""

from __future__ import annotations

from dataclasses import dataclass, field

from composer.errors import Problems


@dataclass
class Link:
    """Speed of what connects two tiers.

    Attributes:
        gb_s: 10^9 bytes a second; None: bytes take no time.
        us_per_call: What a call takes beside its bytes.
    """

    gb_s: float | None = None
    us_per_call: float = 0.0

    def seconds(self, num_calls: int, num_bytes: int) -> float:
        """How long so many calls that move so many bytes take, one after another."""
        moving = 0.0 if self.gb_s is None else num_bytes / (self.gb_s * 1e9)
        return num_calls * self.us_per_call * 1e-6 + moving


@dataclass
class Links:
    """The links of a stack: device and host memory, host memory and storage."""

    host: Link = field(default_factory=Link)
    storage: Link = field(default_factory=Link)

    def check(self, key: str) -> None:
        """Refuse speeds that cannot be.

        Raises:
            ConfigError: With every wrong setting below ``key``.
        """
        problems = Problems()
        for name, link in vars(self).items():
            if link.gb_s is not None and not link.gb_s > 0:
                problems.add(f"{key}.{name}.gb_s", f"is {link.gb_s}", "Give GB/s, or null")
            if not link.us_per_call >= 0:
                problems.add(
                    f"{key}.{name}.us_per_call", f"is {link.us_per_call}", "Give 0 or more"
                )
        problems.raise_if_any()


@dataclass(frozen=True)
class Movement:
    """Calls of one direction so far, and bytes that they moved; ``link``: a name in ``Links``."""

    link: str
    num_calls: int
    num_bytes: int
