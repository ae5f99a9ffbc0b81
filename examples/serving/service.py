"""One worker's model, stack and queue: what the endpoint is in front of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

from composer.engines.transformers import Engine, Generated, Sampling, compose_for
from composer.engines.transformers_models import local_model, random_model
from composer.errors import ConfigError, Problems
from serving.jobs import BusyError, Job, Jobs
from serving.keys import Keys
from serving.metrics import Metrics
from serving.protocol import ApiError, Asked, Json, usage_of
from serving.settings import ModelSettings, Settings
from serving.text import Answer, ByteTokenizer, FolderTokenizer, Tokenizer

RETRY_AFTER_S = 1


class Exchange:
    """One request's answer under way, as text."""

    def __init__(self, job: Job, answer: Answer) -> None:
        self._job, self._answer = job, answer

    async def pieces(self) -> AsyncIterator[str]:
        """The text, piece by piece.

        Raises:
            ApiError: The server stops before the answer ends.
        """
        async for token in self._job.tokens():
            if piece := self._answer.push(token):
                yield piece
            if self._answer.stopped:
                self.cancel()
                return
        if piece := self._answer.end():
            yield piece
        if self.finish is None:
            raise ApiError(503, "The server is stopping", code="stopping")

    @property
    def finish(self) -> str | None:
        """Why the answer ended; None: it has not."""
        return "stop" if self._answer.stopped else self.result.finish_reason

    @property
    def result(self) -> Generated:
        """Its tokens so far, and what they took."""
        return self._job.result

    @property
    def usage(self) -> Json:
        """What it has taken so far."""
        return usage_of(self.result)

    def cancel(self) -> None:
        """Compute nothing more of it. Idempotent."""
        self._job.cancel()


class Service:
    """Answers requests until ``close``."""

    def __init__(self, settings: Settings, worker: int = 0) -> None:
        """Load the model and compose its stack.

        Raises:
            ComposerError: Something is wrong with the settings, or the store cannot be reached.
        """
        self.limits, self._keys = settings.limits, Keys(settings.keys_file)
        model, self.tokenizer, self.name = load(settings.model)
        self._publish_s, self._closed = settings.server.publish_s, False
        with ExitStack() as opened:
            self.stack = stack = opened.enter_context(compose_for(model, settings.cache))
            self._engine = Engine(model, stack)
            opened.pop_all()  # from here on it is closed by close
        self._jobs = Jobs(self.limits.running, self.limits.waiting)
        self.metrics = Metrics(stack, self._jobs, worker)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._context = longest or self.limits.prompt_tokens + self.limits.new_tokens

    def close(self) -> None:
        """End what is under way, write what storage has not got, and give all back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._jobs.close()
        self.stack.publish(self._publish_s)
        self.stack.close()

    async def start(
        self, asked: Asked, encode: Callable[[Tokenizer], list[int]], authorization: str | None
    ) -> Exchange:
        """Begin to answer, as soon as it is this request's turn.

        Args:
            asked: The request.
            encode: Makes its prompt.
            authorization: The header of that name.

        Raises:
            ApiError: The request is not one that can be answered, or too many others wait.
        """
        salt = self._salt(authorization)
        if asked.model not in (None, self.name):
            message = f"There is no model '{asked.model}' here, only '{self.name}'"
            raise ApiError(404, message, code="model_not_found", param="model")
        ids = await asyncio.to_thread(encode, self.tokenizer)
        sampling = Sampling(
            max_new_tokens=self._max_tokens(asked, len(ids)),
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=asked.seed,
            stop=self.tokenizer.stop_ids,
        )
        try:
            stream = self._engine.stream(ids, sampling, salt=salt)
            job = self._jobs.start(stream)
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_prompt", param=asked.source) from error
        except BusyError:
            waiting = {"Retry-After": str(RETRY_AFTER_S)}
            message = "Too many requests wait already; come back in a moment"
            raise ApiError(429, message, code="queue_full", headers=waiting) from None
        return Exchange(job, Answer(self.tokenizer, asked.stops))

    def _salt(self, authorization: str | None) -> str | None:
        try:
            return self._keys.salt(authorization)
        except PermissionError:
            message = "Send one of this server's API keys: 'Authorization: Bearer KEY'"
            raise ApiError(401, message, code="invalid_api_key") from None

    def _max_tokens(self, asked: Asked, num_prompt: int) -> int:
        most = min(self.limits.prompt_tokens, self._context - 1)
        if num_prompt > most:
            message = f"The prompt has {num_prompt} tokens, and may have {most}"
            raise ApiError(400, message, code="context_length_exceeded", param=asked.source)
        most = min(self.limits.new_tokens, self._context - num_prompt)
        wanted = asked.wanted_tokens or most
        if wanted > most:
            message = f"max_tokens is {wanted}, and may be {most} behind this prompt"
            raise ApiError(400, message, code="invalid_value", param="max_tokens")
        return wanted


def load(settings: ModelSettings) -> tuple[Any, Tokenizer, str]:
    """A model, its tokenizer, and the name that clients know it by.

    Raises:
        ConfigError: There is no model or tokenizer where the settings say so.
    """
    problems = Problems()
    with problems.absorbing("model.config" if settings.path is None else "model.path"):
        return _loaded(settings)
    raise ConfigError(problems.found)


def _loaded(settings: ModelSettings) -> tuple[Any, Tokenizer, str]:
    if settings.path is None:
        dtype = "float32" if settings.dtype == "auto" else settings.dtype
        model = random_model(
            settings.config, seed=settings.seed, dtype=dtype, device=settings.device
        )
        return model, ByteTokenizer(), settings.name or "random"
    tokenizer = FolderTokenizer(settings.path)
    model = local_model(settings.path, dtype=settings.dtype, device=settings.device)
    folder = settings.path.rstrip("/").rpartition("/")[2]
    return model, tokenizer, settings.name or folder
