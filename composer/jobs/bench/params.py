"""What a bench measures, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass

from composer.errors import Problems
from composer.units import parse_bytes


@dataclass
class Params:
    """What is measured, and how thoroughly.

    Attributes:
        rows: Names of the rows; None: all.
        rounds: Measurements of each side; the median counts.
        pages: Pages copied between the tiers at once, at most.
        all_layouts: Copy in every layout; False: in the chosen one, as a sweep over layouts wants.
        python_pages: Pages of the rows that move no bytes, at most.
        prompt_tokens: Length of the prompt that is matched, at most.
        storage_batch: What one call to the store moves; a quarter of it where that goes over TCP.
        threads: Threads of torch's copies: with more than one, a busy machine shows how long the
            others are waited for. None: as many as torch takes by itself.
        baseline: JSON of an earlier run that this one is compared with; None: none is.
    """

    rows: list[str] | None = None
    rounds: int = 9
    pages: int = 32
    all_layouts: bool = True
    python_pages: int = 4096
    prompt_tokens: int = 131_072
    storage_batch: str = "128MiB"
    threads: int | None = 1
    baseline: str | None = None

    @property
    def storage_batch_bytes(self) -> int:
        return parse_bytes(self.storage_batch)

    def check(self, problems: Problems) -> None:
        """Add what cannot be measured."""
        for key in ("rounds", "pages", "python_pages", "prompt_tokens", "threads"):
            if (value := getattr(self, key)) is not None and value < 1:
                problems.add(f"job.{key}", f"{value} is less than one")
        try:
            parse_bytes(self.storage_batch)
        except ValueError as error:
            problems.add("job.storage_batch", str(error))


def three_sizes(most: int) -> list[int]:
    """A sixteenth, a quarter and all of it, so that growth shows."""
    return sorted({max(1, most // 16), max(1, most // 4), most})
