"""Choosing tokens from logits, reproducibly."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when to end.

    Attributes:
        max_new_tokens: Most tokens of an answer.
        temperature: 0: the most likely token, always.
        top_p: Choose among the most likely tokens that have this probability together.
        seed: Of the random choice; None: another one every time.
        stop: Ids that end an answer; they are not part of it.

    Raises:
        ValueError: A setting is out of range.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Collection[int] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}, and must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}, and must be at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, and must be above 0 and at most 1")


class Chooser:
    """Chooses the tokens of one answer."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """One token id.

        Args:
            logits: ``[vocabulary]``, on any device.
        """
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        scaled = logits.float().cpu() / self._sampling.temperature
        chances, ids = scaled.softmax(-1).sort(descending=True)
        # the first token that exceeds the mass is still among them, so that there is always one
        chances[chances.cumsum(-1) - chances >= self._sampling.top_p] = 0
        return int(ids[torch.multinomial(chances, 1, generator=self._random)])
