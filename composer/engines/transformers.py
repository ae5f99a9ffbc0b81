"""Hugging Face transformers on a stack: a persistent, shared, token-exact prefix cache.

``compose_for(model)`` makes the stack that fits a model, and ``Engine(model, stack)`` answers
prompts with it:

    with compose_for(model, ["backend=file", "backend.path=/tmp/kv"]) as stack:
        engine = Engine(model, stack)
        answer = engine.generate(ids, Sampling(max_new_tokens=64))
        for token in engine.stream(ids):
            ...

A prompt is computed in chunks that end at every multiple of ``checkpoint_tokens`` and at its end,
with or without a cache, and only whole chunks are kept: an answer is the same, bit for bit,
whatever was cached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from composer.stack import Stack
from composer.storage import StorageBackend


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when to end.

    Attributes:
        max_new_tokens: Most tokens of an answer.
        temperature: 0: the most likely token, always.
        top_p: Choose among the most likely tokens that have this probability together.
        seed: Of the random choice; None: another one every time.
        stop: Ids that end an answer; they are not part of it.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Collection[int] = ()


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
        not_cached: Why a prefix could not be restored or kept, where there is a reason.
    """

    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    hit_tokens: Mapping[str, int] = field(default_factory=dict)
    finish_reason: Literal["stop", "length"] | None = None
    ttft_s: float | None = None
    not_cached: str | None = None


class Stream(Iterator[int]):
    """The tokens of one answer, each computed when it is asked for.

    ``close`` ends it at any time; nothing of the stack is held between two tokens, so that a
    stream that is simply dropped costs nothing either.

    Attributes:
        result: What there is so far.
    """

    result: Generated

    def __next__(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """End it: no further token. Idempotent."""
        raise NotImplementedError


class Engine:
    """A model that answers prompts, with a stack as its prefix cache. Thread-safe.

    Requests of several threads run one forward call at a time, and each answer is the same as if
    it were alone. Batch size 1, no padding.
    """

    def __init__(self, model: Any, stack: Stack, *, exact: bool = True) -> None:
        """Bind a model to a stack.

        Args:
            model: A causal language model of transformers, in eval mode.
            stack: From ``compose_for``, or composed by hand with ``engine=transformers``.
            exact: Keep and restore whole chunks only. False: also the end of a prompt and what was
                generated: longer hits, and answers that are equal up to rounding.

        Raises:
            ConfigError: The stack's pools do not hold what the model's cache holds.
        """
        raise NotImplementedError

    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling | None = None,
        *,
        salt: str | None = None,
        extra_key: str | None = None,
        on_logits: Callable[[Any], None] | None = None,
    ) -> Generated:
        """Answer a prompt.

        A full device tier or a failing store costs the cache, never the answer.

        Args:
            ids: Token ids of the prompt: a list, an integer array or a tensor ``[length]``; at
                least one.
            sampling: None: 16 tokens, greedy.
            salt: Separates tenants in every tier.
            extra_key: Separates what else changes the cache's bytes, e.g. an adapter.
            on_logits: Called with the logits ``[vocabulary]`` of every token, before it is chosen.

        Raises:
            ValueError: No ids, or a setting of ``sampling`` out of range.
        """
        raise NotImplementedError

    def stream(
        self,
        ids: Sequence[int],
        sampling: Sampling | None = None,
        *,
        salt: str | None = None,
        extra_key: str | None = None,
        on_logits: Callable[[Any], None] | None = None,
    ) -> Stream:
        """As ``generate``, token by token. The prompt is computed when the first is asked for."""
        raise NotImplementedError


def compose_for(
    model: Any,
    overrides: Sequence[str] = (),
    *,
    backend: StorageBackend | None = None,
    **more: Any,
) -> Stack:
    """Compose the stack that fits a model.

    The pools come from ``model.config`` through the family of its ``model_type``, as the
    convention ``transformers`` lays them out, and are checked against the cache of a probe call:
    every tensor that the cache holds must be claimed with its shape and dtype. The namespace holds
    the version of transformers and a digest of the config and all weights; ``model.revision=...``
    among the overrides stands for that digest, and saves reading the weights.

    Args:
        model: A causal language model of transformers, in eval mode.
        overrides: In Hydra's grammar, e.g. ``["backend=file", "page_size=16"]``.
        backend: A backend of the caller's own, in place of the configured one.
        more: Further arguments of ``composer.compose``, by name.

    Raises:
        ConfigError: No family knows the model, its cache is not what the family says, or it cannot
            be restored, with the reason.
        BackendError: The storage backend cannot be set up.
    """
    raise NotImplementedError
