"""The HTTP endpoint of one worker."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from serving.protocol import (
    ApiError,
    Asked,
    ChatForm,
    ChatRequest,
    CompletionRequest,
    Form,
    Json,
    StreamOptions,
    invalid,
)
from serving.service import Exchange, Service

PAGE = Path(__file__).with_name("page.html")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499  # an answer that nobody reads

log = logging.getLogger(__name__)
Authorization = Annotated[str | None, Header()]


class Events(StreamingResponse):
    """The events of an exchange, which ends with this response, however that ends."""

    media_type = "text/event-stream"

    def __init__(self, api: Api, exchange: Exchange, events: AsyncIterator[str], path: str) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._api, self._exchange, self._path = api, exchange, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._api.ended(self._exchange, self._path)


class Api:
    """What each path answers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = int(time.time())

    async def completions(
        self, asked: CompletionRequest, request: Request, authorization: Authorization = None
    ) -> Response:
        """Go on with a text."""
        prompt = asked.prompt
        exchange = await self._service.start(
            asked, lambda text: text.encode(prompt) if isinstance(prompt, str) else prompt,
            authorization,
        )  # fmt: skip
        return await self._answer(request, asked, exchange, Form(self._service.name))

    async def chat(
        self, asked: ChatRequest, request: Request, authorization: Authorization = None
    ) -> Response:
        """Answer the last message of a conversation."""
        messages = [message.plain() for message in asked.messages]
        exchange = await self._service.start(
            asked, lambda text: text.encode_chat(messages), authorization
        )
        return await self._answer(request, asked, exchange, ChatForm(self._service.name))

    async def models(self) -> Json:
        """The one model there is."""
        model = {"id": self._service.name, "object": "model", "owned_by": "kvpool"}
        return {"object": "list", "data": [{**model, "created": self._started}]}

    async def health(self) -> Json:
        """Answers when requests are answered."""
        return {"status": "ok", "model": self._service.name}

    def metrics(self) -> Response:
        """Series for Prometheus; on a thread, as it waits for locks of the stack."""
        return Response(self._service.metrics.text(), media_type=METRICS_TYPE)

    async def page(self) -> HTMLResponse:
        """A page to try it out."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    def ended(self, exchange: Exchange, path: str) -> None:
        """End an exchange that has no error, and count it."""
        exchange.cancel()
        self._service.metrics.ended(path, CLIENT_GONE if exchange.finish is None else 200)
        self._service.metrics.answered(exchange.result)

    async def failed(self, request: Request, error: Exception) -> Response:
        """An error as OpenAI's clients know them."""
        if isinstance(error, RequestValidationError):
            error = invalid(error.errors())
        elif isinstance(error, HTTPException):
            error = ApiError(error.status_code, str(error.detail), code="not_found")
        elif not isinstance(error, ApiError):
            error = ApiError(500, "Something went wrong here; the log says what", code="internal")
        self._service.metrics.ended(_path(request), error.status)
        return JSONResponse(error.body, error.status, error.headers)

    async def _answer(
        self, request: Request, asked: Asked, exchange: Exchange, form: Form
    ) -> Response:
        path = _path(request)
        if asked.stream:
            options = asked.stream_options or StreamOptions()
            return Events(self, exchange, _events(exchange, form, options), path)
        text = await _unless_gone(request, exchange)
        self.ended(exchange, path)
        return JSONResponse(form.whole(text, str(exchange.finish), exchange.usage))


async def _events(exchange: Exchange, form: Form, options: StreamOptions) -> AsyncIterator[str]:
    try:
        async for piece in exchange.pieces():
            usage = exchange.usage if options.continuous_usage_stats else None
            yield _event(form.piece(piece, None, usage))
        usage = exchange.usage if options.continuous_usage_stats else None
        yield _event(form.piece("", exchange.finish, usage))
        if options.include_usage:
            yield _event(form.last(exchange.usage))
    except ApiError as error:
        yield _event(error.body)
    except Exception:
        log.exception("an answer failed")
        yield _event(ApiError(500, "Something went wrong here", code="internal").body)
    yield "data: [DONE]\n\n"


def _event(data: Json) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _unless_gone(request: Request, exchange: Exchange) -> str:
    """The whole text.

    Raises:
        ApiError: Nobody waits for it any more.
    """

    async def read() -> str:
        return "".join([piece async for piece in exchange.pieces()])

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    reading, leaving = asyncio.create_task(read()), asyncio.create_task(leave())
    try:
        await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise ApiError(CLIENT_GONE, "The client has gone", code="gone")
        return reading.result()
    finally:
        exchange.cancel()
        reading.cancel()
        leaving.cancel()


def _path(request: Request) -> str:
    """The path that a request took, of those there are: a name that can be a label."""
    return str(getattr(request.scope.get("route"), "path", "other"))


def make_app(service: Service) -> FastAPI:
    """The endpoint in front of a service, which it closes when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    api = Api(service)
    kinds = (ApiError, RequestValidationError, HTTPException, Exception)
    handlers: dict[Any, Any] = dict.fromkeys(kinds, api.failed)
    app = FastAPI(lifespan=lifespan, exception_handlers=handlers, docs_url=None, redoc_url=None)
    app.add_api_route("/v1/completions", api.completions, methods=["POST"])
    app.add_api_route("/v1/chat/completions", api.chat, methods=["POST"])
    app.add_api_route("/v1/models", api.models)
    app.add_api_route("/health", api.health)
    app.add_api_route("/metrics", api.metrics)
    app.add_api_route("/", api.page)
    return app
