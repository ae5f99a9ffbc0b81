"""The form of requests, answers and errors: OpenAI's, as far as one model answers one prompt."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from composer.engines.transformers import Generated

Ids = list[Annotated[int, Field(ge=0)]]
Json = dict[str, Any]


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``param``: field of the request that is at fault."""
        super().__init__(message)
        self.status, self.headers = status, headers
        kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
        body = {"message": message, "type": kind, "param": param, "code": code}
        self.body = {"error": body}


class StreamOptions(BaseModel):
    """``include_usage``: the last event says it; ``continuous_usage_stats``: every event does."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Asked(BaseModel):
    """What both kinds of requests take. Fields that would change the answer are not ignored."""

    model_config = ConfigDict(extra="forbid")
    source: ClassVar[str] = "prompt"  # the field that the prompt is in

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    user: str | None = None  # says nothing that matters here

    @property
    def wanted_tokens(self) -> int | None:
        """Longest answer wanted; None: as long as may be."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in stop if text]


class CompletionRequest(Asked):
    """Body of ``/v1/completions``; the prompt is a text or its tokens."""

    prompt: str | Ids
    max_tokens: int | None = Field(16, ge=1)
    echo: Literal[False] = False
    best_of: Literal[1] = 1
    logprobs: None = None


class TextPart(BaseModel):
    """A part of a message; there are no other kinds than text."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Role and text."""
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        return {"role": self.role, "content": "".join(part.text for part in self.content)}


class ChatRequest(Asked):
    """Body of ``/v1/chat/completions``."""

    source: ClassVar[str] = "messages"

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] | None = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class Form:
    """How the answers to one request look; this is a completion's."""

    whole_kind = piece_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, model: str) -> None:
        self._head = {"created": int(time.time()), "model": model}
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"

    def whole(self, text: str, finish: str, usage: Json) -> Json:
        """The answer in one piece."""
        return self._body(self.whole_kind, self._text(text), finish, usage)

    def piece(self, text: str, finish: str | None, usage: Json | None) -> Json:
        """A piece of it; the last one says why there is no more."""
        return self._body(self.piece_kind, self._delta(text), finish, usage)

    def last(self, usage: Json) -> Json:
        """The event behind all pieces."""
        return {**self._start(self.piece_kind), "choices": [], "usage": usage}

    def _text(self, text: str) -> Json:
        return {"text": text}

    def _delta(self, text: str) -> Json:
        return self._text(text)

    def _start(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, **self._head}

    def _body(self, kind: str, content: Json, finish: str | None, usage: Json | None) -> Json:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        said = {} if usage is None else {"usage": usage}
        return {**self._start(kind), "choices": [choice], **said}


class ChatForm(Form):
    """How the answers to a conversation look."""

    whole_kind, piece_kind = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    _begun = False

    def _text(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _delta(self, text: str) -> Json:
        role = {} if self._begun else {"role": "assistant"}  # clients join what is repeated
        self._begun = True
        return {"delta": {**role, "content": text}}


def usage_of(result: Generated) -> Json:
    """What an answer took, so far; beside OpenAI's fields the tiers that the hits came from."""
    details = {"cached_tokens": result.cached_tokens, "by_tier": dict(result.hit_tokens)}
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": len(result.tokens),
        "total_tokens": result.prompt_tokens + len(result.tokens),
        "prompt_tokens_details": {**details, "ttft_s": result.ttft_s},
    }


def invalid(errors: Sequence[Any]) -> ApiError:
    """What pydantic found wrong with a body, the first of it as ``param``."""
    told = [(_place(error["loc"]), str(error["msg"])) for error in errors]
    message = "; ".join(dict.fromkeys(f"{place}: {why}" if place else why for place, why in told))
    return ApiError(400, message, code="invalid_value", param=(told[0][0] if told else "") or None)


def _place(location: Sequence[str | int]) -> str:
    """Where in the body, without the names of the alternatives that were tried."""
    names = [str(part) for part in location if part not in ("body", "str")]
    return ".".join(name for name in names if name.isidentifier() or name.isdigit())
