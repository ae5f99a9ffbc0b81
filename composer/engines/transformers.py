"""Hugging Face transformers on a stack: a persistent, shared, token-exact prefix cache.

``compose_for(model)`` makes the stack that fits a model, ``generate(model, ids, stack)`` answers a
prompt with it, and ``Engine(model, stack)`` many:

    with compose_for(model, ["backend=file", "backend.path=/tmp/kv"]) as stack:
        engine = Engine(model, stack)
        answer = engine.generate(ids, Sampling(max_new_tokens=64))
        for token in engine.stream(ids):
            ...

A prompt is computed page by page, with or without a cache, and an answer is the same, bit for bit,
whatever was cached. Larger pages (``page_size``) make fewer calls, and coarser hits.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import transformers
from omegaconf import DictConfig

from composer.config import load_source_config, to_stack_config
from composer.engines.sampling import Sampling
from composer.engines.transformers_binding import Binding
from composer.engines.transformers_cache import find_places, probe
from composer.engines.transformers_request import Generated, Request, Runner
from composer.engines.weights import weights_digest
from composer.errors import ConfigError, Problems
from composer.hf_import import HfConfig
from composer.resolve import resolve
from composer.schema import EngineOverlay, StackConfig
from composer.stack import Stack, compose
from composer.storage import StorageBackend

__all__ = ["Engine", "Generated", "Sampling", "Stream", "compose_for", "generate"]

NAME = "transformers"
OF_MODEL = (  # what a config says of the model; the rest are settings
    "model", "config", "anchor", "num_layers", "num_draft_layers", "dims", "dtypes", "pools",
    "engines", "check",
)  # fmt: skip


class Stream(Iterator[int]):
    """The tokens of one answer, each computed when it is asked for, the prompt with the first.

    Nothing of the stack is held between two tokens, so that a stream that is simply dropped leaves
    nothing behind.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._tokens = request.tokens()

    @property
    def result(self) -> Generated:
        """What there is so far."""
        return self._request.result

    def __next__(self) -> int:
        return next(self._tokens)

    def close(self) -> None:
        """End it: no further token, nor call of the model, a long prompt's either.

        From any thread, also while another one waits for a token. Idempotent.
        """
        self._request.closed = True


class Engine:
    """A model that answers prompts, with a stack as its prefix cache. Thread-safe.

    Requests of several threads make one forward call at a time, and each answer is the same as if
    it were alone. Batch size 1, no padding.
    """

    def __init__(self, model: Any, stack: Stack, *, exact: bool = True) -> None:
        """Bind a model to a stack.

        Args:
            model: A causal language model of transformers, in eval mode.
            stack: From ``compose_for``, or composed by hand with ``engine=transformers``,
                ``engine_version`` and ``model.revision``.
            exact: Compute prompts page by page, and keep nothing that was generated. False: up to
                the next checkpoint in one call, and keep all: faster, longer hits, and answers
                that are equal up to rounding.

        Raises:
            ConfigError: The stack's pools do not hold what the model's cache holds.
        """
        overlay = check(model, stack.config)
        if not stack.config.model.revision:
            fix = "Name them with model.revision=..., or compose with compose_for"
            raise ConfigError.of("model.revision", "nothing tells these weights from others", fix)
        places = find_places(stack.plan.spec, probe(model, stack.plan.spec))
        self.model, self.stack, self.exact = model, stack, exact
        self._lock = Lock()  # some models change buffers of theirs during a call
        known = inspect.signature(model.forward).parameters
        self._arguments = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        binding = Binding(model.config, stack, places)
        self._runner = Runner(stack, binding, self._forward, exact, overlay.stepwise)

    def generate(
        self,
        ids: Sequence[int] | torch.Tensor,
        sampling: Sampling | None = None,
        *,
        salt: str | None = None,
        extra_key: str | None = None,
    ) -> Generated:
        """Answer a prompt.

        A full device tier or a failing store costs the cache, never the answer.

        Args:
            ids: Token ids of the prompt: a list, an integer array or a tensor ``[length]``; at
                least one.
            sampling: None: 16 tokens, greedy.
            salt: Separates tenants in every tier.
            extra_key: Separates what else changes the cache's bytes, e.g. an adapter.

        Raises:
            ValueError: There are no ids, or some are out of the vocabulary.
        """
        stream = self.stream(ids, sampling, salt=salt, extra_key=extra_key)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self,
        ids: Sequence[int] | torch.Tensor,
        sampling: Sampling | None = None,
        *,
        salt: str | None = None,
        extra_key: str | None = None,
    ) -> Stream:
        """As ``generate``, token by token."""
        prompt = [int(token) for token in (ids.tolist() if isinstance(ids, torch.Tensor) else ids)]
        size = self.model.config.get_text_config().vocab_size
        if not prompt or not 0 <= min(prompt) <= max(prompt) < size:
            raise ValueError(f"a prompt is at least one token id from 0 to {size - 1}")
        name = self.extra_key(extra_key)
        return Stream(Request(self._runner, prompt, sampling or Sampling(), salt, name))

    def extra_key(self, extra_key: str | None = None) -> str | None:
        """The extra key of an answer's pages, for calls of the stack itself, e.g. ``explain``.

        Pages whose rounding must agree bear what it depends on, so that no others are found.
        """
        if not self.exact:
            return extra_key
        parts = [*rounding(self.model), *([] if extra_key is None else [extra_key])]
        return "/".join(parts)

    def _forward(self, ids: Sequence[int], first: int, cache: Any) -> torch.Tensor:
        device = self.model.device
        positions = torch.arange(first, first + len(ids), device=device)[None]
        with self._lock, torch.inference_mode():
            output = self.model(
                input_ids=torch.tensor([list(ids)], device=device),
                position_ids=positions,
                cache=cache,
                use_cache=True,
                **self._arguments,
            )
        logits: torch.Tensor = output.logits[0, -1]
        return logits


def compose_for(
    model: Any,
    settings: Sequence[str] | DictConfig | StackConfig = (),
    *,
    backend: StorageBackend | None = None,
    **more: Any,
) -> Stack:
    """Compose the stack that fits a model.

    The pools come from ``model.config`` through the family of its ``model_type``, as the
    convention ``transformers`` lays them out, and are checked against the cache of a probe call:
    every tensor that the cache holds must be claimed with its shape and dtype. The namespace holds
    the version of transformers and a digest of the config and all weights; ``model.revision=...``
    among the settings stands for that digest, and saves reading the weights.

    Args:
        model: A causal language model of transformers, in eval mode.
        settings: Overrides in Hydra's grammar, e.g. ``["backend=file", "page_size=16"]``; or a
            config, e.g. the part of a host's own that holds a stack: whatever preset it is of, its
            pools give way to this model's.
        backend: A backend of the caller's own, in place of the configured one.
        more: Further arguments of ``composer.compose``, by name.

    Raises:
        ConfigError: No family knows the model, its cache is not what the family says, or it cannot
            be restored, with the reason.
        BackendError: The storage backend cannot be set up.
    """
    config = _config(model, settings)
    config.engine_version = config.engine_version or transformers.__version__
    check(model, config)
    spec = resolve(config)
    find_places(spec, probe(model, spec))
    config.model.revision = config.model.revision or weights_digest(model)
    return compose(config, backend=backend, **more)


def generate(
    model: Any,
    ids: Sequence[int] | torch.Tensor,
    stack: Stack,
    sampling: Sampling | None = None,
    *,
    salt: str | None = None,
    extra_key: str | None = None,
) -> Generated:
    """Answer one prompt, as ``Engine.generate``, with a model that is bound to a stack for it."""
    return Engine(model, stack).generate(ids, sampling, salt=salt, extra_key=extra_key)


def _config(model: Any, settings: Sequence[str] | DictConfig | StackConfig) -> StackConfig:
    fixed = [f"engine={NAME}", f"device.name='{model.device}'"]
    if not isinstance(settings, DictConfig | StackConfig):
        return load_source_config(source(model), [*fixed, *settings])
    given, found = to_stack_config(settings), load_source_config(source(model), fixed)
    found.model.revision = given.model.revision
    return replace(
        given,
        engine=NAME,
        device=replace(given.device, name=found.device.name),
        **{name: getattr(found, name) for name in OF_MODEL},
    )


def source(model: Any) -> HfConfig:
    """What a model says about itself, as its config.json would, with the dtype that it runs in."""
    data = json.loads(model.config.to_json_string(use_diff=False))
    dtype = str(model.dtype).removeprefix("torch.")
    for config in (data, data.get("text_config") or {}):
        config["dtype"] = dtype
    name = str(data.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    data["_name_or_path"] = name or type(model).__name__
    return HfConfig(Path("config.json"), json.dumps(data, indent=2), data)


def rounding(model: Any) -> Iterator[str]:
    """What the last bits of a model's numbers depend on, as far as this process can tell."""
    yield torch.__version__
    yield str(model.config._attn_implementation)
    if model.device.type == "cpu":  # products are cut over threads, and sums with them
        yield f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"
    elif model.device.type == "cuda":
        yield torch.cuda.get_device_name(model.device)
    else:
        yield model.device.type


def check(model: Any, config: StackConfig) -> EngineOverlay:
    """Refuse what cannot be restored, or what others would take for theirs.

    Returns:
        What the convention says about the model's family.

    Raises:
        ConfigError: With every reason.
    """
    overlay = config.engines.get(NAME) or EngineOverlay()
    problems = Problems()
    for key, value, wanted in (
        ("engine", config.engine, NAME),
        ("engine_version", config.engine_version, transformers.__version__),
    ):
        if value != wanted:
            problems.add(key, f"{key} is '{value}'", f"Set {key}={wanted}")
    if overlay.refuse:
        problems.add("model", f"a prefix of it cannot be restored: {overlay.refuse}")
    if "dynamic" in json.dumps(model.config.to_dict().get("rope_parameters"), default=str):
        reason = "its rope_type 'dynamic' depends on what the model has computed before"
        problems.add("model", reason, "Choose one that depends on positions alone")
    if model.training:
        problems.add("model", "the model is in training mode", "Call model.eval()")
    problems.raise_if_any()
    return overlay
