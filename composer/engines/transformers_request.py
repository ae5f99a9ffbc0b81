"""One request: restore what is known of a prompt, compute the rest, keep it, and go on.

To be exact, a prompt is computed page by page, one call each. What a page holds then depends on
nothing but the tokens up to its end, which are what it is named by: not on where a prompt goes on
behind it, which changes the sizes of products within a call, and with them the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import torch

from composer.engines.sampling import Chooser, Sampling
from composer.engines.transformers_binding import Binding
from composer.stack import Stack


@dataclass
class Generated:
    """An answer, or as much of it as there is.

    Attributes:
        tokens: Ids of the answer.
        prompt_tokens: Length of the prompt.
        cached_tokens: Tokens of the prompt that were restored and not computed.
        hit_tokens: The same by the tier that held them: ``device``, ``host``, ``storage``.
        finish_reason: ``stop``, ``length``, or None while it goes on or after ``close``.
        ttft_s: Seconds from the call to the first token; None before it.
    """

    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    hit_tokens: Mapping[str, int] = field(default_factory=dict)
    finish_reason: Literal["stop", "length"] | None = None
    ttft_s: float | None = None


@dataclass(frozen=True)
class Runner:
    """What all requests of an engine share.

    Attributes:
        forward: Ids, position of the first, cache -> logits ``[vocabulary]`` behind the last.
        exact: Compute page by page, and keep no tokens that were computed alone.
        stepwise: Behind a prefix, one token a call.
    """

    stack: Stack
    binding: Binding
    forward: Callable[[Sequence[int], int, Any], torch.Tensor]
    exact: bool
    stepwise: bool

    @property
    def interval(self) -> int:
        """Tokens from one checkpoint to the next."""
        return self.stack.plan.checkpoint_pages * self.stack.page_size


class Request:
    """One prompt and its answer.

    Attributes:
        result: What there is so far.
        closed: No further call of the model begins; any thread may set it.
    """

    def __init__(
        self,
        runner: Runner,
        ids: Sequence[int],
        sampling: Sampling,
        salt: str | None,
        extra_key: str | None,
    ) -> None:
        self._runner, self._stack = runner, runner.stack
        self._ids, self._sampling = list(ids), sampling
        self._names = {"salt": salt, "extra_key": extra_key}
        self._kept = 0  # tokens whose pages the stack has
        self._keeps = True  # until the device tier has no room
        self._begun = perf_counter()
        self.result = Generated(prompt_tokens=len(self._ids))
        self.closed = False

    def tokens(self) -> Generator[int, None, None]:
        """The answer's tokens, each computed when it is asked for.

        Nothing of the stack is held while the caller has one.
        """
        result, sampling, chooser = self.result, self._sampling, Chooser(self._sampling)
        cache, logits = self._prefill()
        while logits is not None and not self.closed:
            token = chooser.choose(logits)
            if result.ttft_s is None:
                result.ttft_s = perf_counter() - self._begun
            if token in sampling.stop:
                result.finish_reason = "stop"
                return
            result.tokens.append(token)
            self._ids.append(token)
            if len(result.tokens) == sampling.max_new_tokens:
                result.finish_reason = "length"
            yield token
            if result.finish_reason is not None or self.closed:
                return
            logits = self._step(cache)

    def _prefill(self) -> tuple[Any, torch.Tensor | None]:
        """Compute the prompt; its cache, and the logits behind its last token unless closed."""
        runner, length, page_size = self._runner, len(self._ids), self._stack.page_size
        match = self._stack.match(self._ids, **self._names, max_tokens=length - 1)
        with self._stack.restore(match) as lease:
            cache = runner.binding.restored(lease)
            self._kept = done = lease.num_tokens
            self.result.cached_tokens, self.result.hit_tokens = done, dict(lease.hit_tokens)
            cuts = self._stack.checkpoints(match, done)
            ends = range(done + page_size, length, page_size) if runner.exact else cuts
            for end in call_ends(done, length, ends, stepwise=runner.stepwise):
                if self.closed:
                    return cache, None
                logits = runner.forward(self._ids[done:end], done, cache)
                if end in cuts:
                    self._keep(cache, end)
                runner.binding.trim(cache)
                done = end
        return cache, logits

    def _step(self, cache: Any) -> torch.Tensor:
        """Compute the last token; the logits behind it."""
        runner, length = self._runner, len(self._ids)
        logits = runner.forward(self._ids[-1:], length - 1, cache)
        if not runner.exact and length % runner.interval == 0:
            self._keep(cache, length)
        runner.binding.trim(cache)
        return logits

    def _keep(self, cache: Any, end: int) -> None:
        """Commit what was computed up to a boundary, in as many parts as there is room for."""
        page_size = self._stack.page_size
        while self._keeps and self._kept < end:
            count = (end - self._kept) // page_size
            while (slots := self._stack.allocate(count, 1)) is None and count > 1:
                count //= 2
            if slots is None:
                self._keeps = False
                return
            begin, self._kept = self._kept, self._kept + count * page_size
            with slots:
                self._runner.binding.save_pages(cache, slots.pages, begin // page_size, end)
                states = {}
                if self._kept == end:
                    states[end] = slots.states[0]
                    self._runner.binding.save_state(cache, slots.states[0])
                ids = self._ids[: self._kept]
                self._stack.commit(ids, slots, states, **self._names, start=begin)


def call_ends(start: int, length: int, cuts: Sequence[int], *, stepwise: bool) -> list[int]:
    """Where the calls that compute a prompt behind ``start`` end, in ascending order.

    Args:
        start: Tokens that are there.
        length: Tokens of the prompt, more than ``start``.
        cuts: Where calls have to end.
        stepwise: Only the first call of all takes more than one token.
    """
    ends = sorted({*cuts, length})
    if not stepwise:
        return ends
    first = start or ends[0]
    return [*([] if start else [first]), *range(first + 1, length + 1)]
