"""The serving example's endpoint, in this process: a real engine, with a tiny model."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from tests.serve_tools import (
    TINY,
    Service,
    body,
    cached,
    events,
    make_app,
    repeated,
    series,
    settings,
    text_of,
)

PROMPT = "A page holds some tokens, a checkpoint the state behind them. " * 5  # 310 bytes
LIMITS = ["limits.prompt_tokens=400", "limits.new_tokens=64"]


@pytest.fixture(scope="module")
def service():
    service = Service(settings(*TINY, *LIMITS, "store=memory"))
    yield service
    service.close()


@asynccontextmanager
async def client_of(service):
    transport = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://serve") as client:
        yield client


@pytest.fixture
def call(service):
    """Sends one request; ``call(path)`` gets, ``call(path, body)`` posts."""

    def call(path, asked=None, key=None, **more):
        async def answer():
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            async with client_of(service) as client:
                if asked is None and not more:
                    return await client.get(path, headers=headers)
                return await client.post(path, json=asked, headers=headers, **more)

        return asyncio.run(answer())

    return call


def test_an_answer_says_how_much_of_its_prompt_was_restored(call):
    prompt = "first " + PROMPT
    cold, warm = (call("/v1/completions", body(prompt)).json() for _ in range(2))

    assert (cached(cold), cached(warm)) == (0, repeated(prompt))
    assert warm["choices"] == cold["choices"]
    assert warm["choices"][0]["finish_reason"] == "length"
    assert warm["usage"]["prompt_tokens"] == 6 + len(PROMPT)
    assert warm["usage"]["completion_tokens"] == 4
    assert warm["usage"]["prompt_tokens_details"]["by_tier"]["device"] == repeated(prompt)
    assert warm["object"] == "text_completion"


def test_a_stream_says_the_same_in_pieces(call):
    asked = body(PROMPT, max_tokens=24)
    whole = call("/v1/completions", asked).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = call("/v1/completions", {**asked, "stream": True, "stream_options": options})
    told = events(answer.text)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert text_of(told) == whole["choices"][0]["text"]
    assert [event["choices"][0]["finish_reason"] for event in told[-3:-1]] == [None, "length"]
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["completion_tokens"] == 24
    assert all(cached(event) == repeated(PROMPT) for event in told)


def test_a_conversation_goes_on_behind_what_it_had(call):
    system = {"role": "system", "content": [{"type": "text", "text": PROMPT}]}
    asked = {"temperature": 0, "max_completion_tokens": 4, "messages": [system]}
    first = call("/v1/chat/completions", asked).json()
    said = first["choices"][0]["message"]
    asked["messages"] = [system, said, {"role": "user", "content": "And then?"}]
    second = call("/v1/chat/completions", asked).json()

    assert (said["role"], cached(first), cached(second)) == ("assistant", 0, 320)
    told = events(call("/v1/chat/completions", {**asked, "stream": True}).text)
    deltas = [event["choices"][0]["delta"] for event in told]
    assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    text = "".join(delta["content"] for delta in deltas)
    assert text == second["choices"][0]["message"]["content"]


def test_tokens_may_be_the_prompt_and_a_seed_fixes_the_choice(call):
    asked = body(list(PROMPT.encode()), temperature=1.5, seed=7, max_tokens=16)
    texts = {call("/v1/completions", asked).json()["choices"][0]["text"] for _ in range(3)}
    others = call("/v1/completions", {**asked, "seed": 8}).json()["choices"][0]["text"]
    assert len(texts) == 1
    assert others not in texts


def test_a_stop_text_ends_an_answer_and_is_not_part_of_it(call):
    text = call("/v1/completions", body(PROMPT, max_tokens=32)).json()["choices"][0]["text"]
    stop = text[8:10]
    answer = call("/v1/completions", body(PROMPT, max_tokens=32, stop=["nowhere", stop])).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 32


@pytest.mark.parametrize(
    ("asked", "status", "param", "says"),
    [
        (body("x", colour="red"), 400, "colour", "not permitted"),
        (body("x", n=2), 400, "n", "should be 1"),
        (body("x", temperature=-1), 400, "temperature", "greater than or equal to 0"),
        (body("x", max_tokens=65), 400, "max_tokens", "may be 64"),
        (body("x" * 401), 400, "prompt", "may have 400"),
        (body(""), 400, "prompt", "at least one token"),
        (body([999]), 400, "prompt", "from 0 to 256"),
        (body("x", model="other"), 404, "model", "only 'random'"),
        ({"max_tokens": 1}, 400, "prompt", "required"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_the_form_that_clients_know(
    call, asked, status, param, says
):
    answer = call("/v1/completions", asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]


def test_other_mistakes_have_the_same_form(call):
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    answer = call("/v1/chat/completions", {"messages": [picture]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages.0.content")
    assert call("/v1/completions", content=b"{").json()["error"]["code"] == "invalid_value"
    assert call("/v2").json()["error"]["code"] == "not_found"
    assert call("/v1/completions").json()["error"]["message"] == "Method Not Allowed"


def test_pages_are_shared_by_requests_with_the_same_key_only(call, caplog, service):
    keys = ["sk-alice", "sk-alice", "sk-bob", None]
    prompt = "private " + PROMPT
    hits = [cached(call("/v1/completions", body(prompt), key=key).json()) for key in keys]
    assert hits == [0, repeated(prompt), 0, 0]
    told = call("/metrics").text + caplog.text + repr(service._keys.__dict__)
    assert "sk-alice" not in told


def test_an_error_of_ours_is_told_and_counted_and_no_details_of_it(call, service, monkeypatch):
    def broken(*_):
        raise RuntimeError("secret")

    runner = replace(service._engine._runner, forward=broken)
    monkeypatch.setattr(service._engine, "_runner", runner)
    answer = call("/v1/completions", body("x"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    (event,) = events(call("/v1/completions", body("x", stream=True)).text)
    assert event["error"]["code"] == "internal"
    assert "secret" not in answer.text + str(event)


def test_health_models_metrics_and_the_page(call):
    assert call("/health").json() == {"status": "ok", "model": "random"}
    assert [model["id"] for model in call("/v1/models").json()["data"]] == ["random"]
    call("/v1/completions", body("metered " + PROMPT))
    text = call("/metrics").text
    answered = series(text, "serve_requests_total")
    assert answered['{endpoint="/v1/completions",status="200"}'] >= 1
    assert series(text, "serve_tokens_total")['{kind="prompt"}'] >= 300
    assert series(text, "kvpool_slots_free").keys() == {
        f'{{space="{space}",tier="{tier}",worker="0"}}'
        for space in ("kv", "linear") for tier in ("device", "host")
    }  # fmt: skip
    page = call("/").text
    assert "<textarea" in page
    assert "://" not in page.replace("://127.0.0.1", ""), "it loads nothing from elsewhere"
