"""What tests of the engine ask of it: answers with all their logits, and the cold ones to match."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from composer.engines.transformers import Engine, Sampling
from composer.stack import Stack
from tests.hf_tiny import MODELS, prompt

NEW = 5  # tokens of an answer
SUFFIX = 6  # tokens of a prompt behind what it shares


@dataclass
class Answer:
    """Tokens, a digest of the logits that each was chosen from, and what was restored."""

    tokens: list[int]
    logits: str
    cached: int
    storage: int

    @property
    def said(self) -> tuple[list[int], str]:
        return self.tokens, self.logits


class Asked:
    """An engine whose logits are watched."""

    def __init__(self, model: Any, stack: Stack, *, exact: bool = True) -> None:
        self.engine, self.stack = Engine(model, stack, exact=exact), stack
        self._logits: list[torch.Tensor] = []
        model.register_forward_hook(self._watch)

    def _watch(self, _model: Any, _arguments: Any, output: Any) -> None:
        self._logits.append(output.logits[0, -1].clone())

    def ask(
        self,
        ids: list[int],
        salt: str | None = None,
        *,
        meanwhile: Callable[[], None] = lambda: None,
        **sampling: Any,
    ) -> Answer:
        """``meanwhile`` is called behind the first token."""
        self._logits.clear()
        stream = self.engine.stream(ids, Sampling(NEW, **sampling), salt=salt)
        next(stream)
        meanwhile()
        tokens, result = list(stream), stream.result
        assert tokens == result.tokens[1:]
        chosen = torch.stack(self._logits[-len(result.tokens) :]).contiguous()
        digest = hashlib.sha256(chosen.view(torch.uint8).numpy().tobytes()).hexdigest()
        return Answer(result.tokens, digest, result.cached_tokens, result.hit_tokens["storage"])

    def cold(self, ids: list[int]) -> Answer:
        """The same without a cache: under a salt that nobody else has."""
        answer = self.ask(ids, salt=f"cold {len(ids)} {ids[-1]}")
        assert answer.cached == 0
        return answer


def shared(name: str) -> list[int]:
    """A prompt that reaches a little beyond the fourth checkpoint (the second of long ones)."""
    interval = MODELS[name].interval
    return prompt((2 if interval > 64 else 4) * interval + 3)


def branches(name: str) -> Iterator[tuple[int, list[int]]]:
    """Boundaries, and prompts that leave the shared one there."""
    whole, interval = shared(name), MODELS[name].interval
    for boundary in range(interval, len(whole), interval):
        if boundary != 3 * interval:
            yield boundary, whole[:boundary] + prompt(SUFFIX, first=boundary + 50)
