"""Answers the same prompts with their prefixes in one tier after another, and takes the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from composer.engines.transformers import Engine, Generated, Sampling, compose_for
from composer.engines.transformers_models import local_model, random_model
from composer.errors import ConfigError, Problems
from composer.jobs.progress import Progress
from composer.schema import StackConfig
from composer.stack import Stack

UNCACHED, COLD, ELSEWHERE = "without cache", "empty cache", "another process"
WARM = ("device", "host", "storage")
_ONE = Sampling(max_new_tokens=1)
_WARM_UP_ROUND = -1  # its prompts are nobody else's


@dataclass(frozen=True)
class Plan:
    """What is measured: see ``composer.jobs.ttft.Params``."""

    model_path: str | None
    model_config: Mapping[str, Any]
    dtype: str
    device: str
    prefix_tokens: Sequence[int]
    question_tokens: int
    rounds: int
    threads: int | None

    def model(self) -> Any:
        """Load it, or make it, for as many threads as were asked for.

        Raises:
            ConfigError: There is none, or it is too small for the longest prompt.
        """
        torch.set_num_threads(self.threads or torch.get_num_threads())
        problems, model = Problems(), None
        if self.model_path is not None:
            with problems.absorbing("job.model_path"):
                model = local_model(self.model_path, dtype=self.dtype, device=self.device)
        else:
            dtype = "float32" if self.dtype == "auto" else self.dtype
            with problems.absorbing("job.model_config"):
                model = random_model(self.model_config, dtype=dtype, device=self.device)
        problems.raise_if_any()
        assert model is not None  # or there is a problem
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        most = max(self.prefix_tokens) + self.question_tokens
        if longest is not None and most > longest:
            reason = f"the longest prompt has {most} tokens, and the model takes {longest}"
            raise ConfigError.of("job.prefix_tokens", reason)
        return model

    def prompt(self, model: Any, number: int, length: int) -> list[int]:
        """Tokens of a prompt, the same in every process."""
        drawn = torch.Generator().manual_seed(1_000_003 * (number + 1) + length)
        size = model.config.get_text_config().vocab_size
        tokens: list[int] = torch.randint(
            size, (length + self.question_tokens,), generator=drawn
        ).tolist()
        return tokens


@dataclass(frozen=True)
class Timed:
    """One answer.

    Attributes:
        kind: Where the prefix was.
        length: Of the prefix, in tokens.
        seconds: To the first token.
        restored: Tokens of the prompt that were not computed.
        token: The first one.
    """

    kind: str
    length: int
    number: int
    seconds: float
    restored: int
    token: int


def measure(config: StackConfig, plan: Plan, timed: list[Timed]) -> dict[str, Any]:
    """All but what another process restores.

    Args:
        config: Settings of the stack; the pools are the model's.
        plan: What is measured.
        timed: Takes the answers.

    Returns:
        What it was measured with.
    """
    model = plan.model()
    with compose_for(model, config) as stack:
        engine = Engine(model, stack)
        _warm_up(engine, plan)
        cells = [(number, length) for number in range(plan.rounds) for length in plan.prefix_tokens]
        with Progress("ttft", len(cells)) as progress:
            for number, length in cells:
                timed += _in_every_tier(engine, plan.prompt(model, number, length), length, number)
                progress.advance(f"{length:,} tokens")
        stack.publish()
        parameters = sum(weight.numel() for weight in model.parameters())
        return {
            "model": stack.config.model.name,
            "parameters": parameters,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "threads": torch.get_num_threads(),
            "page_size": stack.page_size,
            "checkpoint_tokens": stack.config.checkpoint_tokens,
            "backend": str(stack.config.backend.get("name")),
        }


def measure_elsewhere(config: StackConfig, plan: Plan) -> list[Timed]:
    """The same prompts in a process that computed none of them."""
    model, timed = plan.model(), []
    with compose_for(model, config) as stack:
        engine = Engine(model, stack)
        _warm_up(engine, plan)
        cells = [(number, length) for number in range(plan.rounds) for length in plan.prefix_tokens]
        with Progress("ttft of another process", len(cells)) as progress:
            for number, length in cells:
                ids = plan.prompt(model, number, length)
                timed.append(_timed(ELSEWHERE, length, number, engine.generate(ids, _ONE)))
                progress.advance(f"{length:,} tokens")
    return timed


def _warm_up(engine: Engine, plan: Plan) -> None:
    """Let libraries load and choose what they load and choose once, on every way there is."""
    ids = plan.prompt(engine.model, _WARM_UP_ROUND, min(plan.prefix_tokens))
    _in_every_tier(engine, ids, min(plan.prefix_tokens), _WARM_UP_ROUND)


def _in_every_tier(engine: Engine, ids: Sequence[int], length: int, number: int) -> list[Timed]:
    timed = [
        _uncached(engine.model, ids, length, number),
        _timed(COLD, length, number, engine.generate(ids, _ONE)),
    ]
    engine.stack.publish()
    for place, kind in enumerate(WARM):
        _forget(engine.stack, WARM[:place])
        timed.append(_timed(kind, length, number, engine.generate(ids, _ONE)))
    return timed


def _uncached(model: Any, ids: Sequence[int], length: int, number: int) -> Timed:
    """The prompt in one call, as without any cache over requests."""
    begun = perf_counter()
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=True)
        token = int(output.logits[0, -1].argmax())
    return Timed(UNCACHED, length, number, perf_counter() - begun, 0, token)


def _timed(kind: str, length: int, number: int, answer: Generated) -> Timed:
    assert answer.ttft_s is not None  # one token was asked for
    token = answer.tokens[0]
    return Timed(kind, length, number, answer.ttft_s, answer.cached_tokens, token)


def _forget(stack: Stack, tiers: Sequence[str]) -> None:
    """Empty some tiers; those below keep what they have."""
    with stack.cache.tiers.lock:
        for tier in tiers:
            getattr(stack.cache.tiers, tier).clear(None)
