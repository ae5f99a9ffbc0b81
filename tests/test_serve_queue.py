"""Requests of the serving example that wait, that nobody waits for any more, and many at once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from tests.serve_tools import TINY, Service, body, cached, events, make_app, series, settings

QUEUE = ["limits.running=1", "limits.waiting=1", "limits.new_tokens=2000"]
ENDED_S = 20.0


def open_service():
    service = Service(settings(*TINY, *QUEUE, "store=memory"))
    service.tokenizer.stop_ids = frozenset()  # its answers are as long as they may be
    return service


@pytest.fixture(scope="module")
def service():
    service = open_service()
    yield service
    service.close()


@pytest.fixture
def forward(service):
    """Held, no forward call begins, and so no answer ends."""
    return service._engine._lock


@asynccontextmanager
async def client_of(service):
    transport = httpx.ASGITransport(make_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://serve") as client:
        yield client


async def until(condition):
    """Return when ``condition()`` is true."""
    end = time.monotonic() + ENDED_S
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        await asyncio.sleep(0.01)


def test_more_than_may_wait_are_told_to_come_back_and_others_are_not_kept(service, forward):
    async def crowd():
        async with client_of(service) as client:
            with forward:
                asked = [client.post("/v1/completions", json=body(f"{n}")) for n in range(3)]
                answers = [asyncio.ensure_future(one) for one in asked]
                await until(lambda: any(answer.done() for answer in answers))
                told = (await client.get("/metrics")).text  # the event loop is free
                assert (await client.get("/health")).status_code == 200
            return told, await asyncio.gather(*answers)

    told, answers = asyncio.run(crowd())
    refused = [answer for answer in answers if answer.status_code == 429]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429]
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json()["error"]["code"] == "queue_full"
    assert "serve_requests_running 1.0" in told
    assert "serve_requests_waiting 1.0" in told


class Visitor:
    """A client that leaves when it wants to: it talks to the application itself."""

    def __init__(self, service, asked):
        self._app = make_app(service)
        self._body = json.dumps(asked).encode()
        self._left, self._sent = asyncio.Event(), 0
        self.got = asyncio.Event()

    async def visit(self):
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)

    def leave(self):
        self._left.set()

    async def _receive(self):
        self._sent += 1
        if self._sent == 1:
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message.get("body"):
            self.got.set()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer_and_holds_nothing(service, stream):
    before = service.metrics.text().decode()

    async def leave_early():
        visitor = Visitor(service, body("x" * 100, max_tokens=2000, stream=stream))
        visiting = asyncio.ensure_future(visitor.visit())
        if stream:
            await visitor.got.wait()
        else:
            await until(lambda: service._jobs.num_running)
        (job,) = service._jobs._jobs
        visitor.leave()
        await visiting
        await until(lambda: not service._jobs.num_running)
        return job.result

    result = asyncio.run(leave_early())
    assert result.finish_reason is None
    assert len(result.tokens) < 2000
    after = service.metrics.text().decode()
    gone = '{endpoint="/v1/completions",status="499"}'
    told = [series(text, "serve_requests_total").get(gone, 0) for text in (before, after)]
    assert told[1] == told[0] + 1
    assert_all_free(service.stack)


def assert_all_free(stack):
    """Nobody holds a slot: all are free once what is cached is forgotten."""
    stack.clear()
    counters = stack.counters()
    slots = {name: count for name, count in counters.items() if name.startswith("slots.")}
    free = {name: counters[name.replace("slots.", "slots_free.")] for name in slots}
    assert free == slots
    assert all(slots.values())


def test_a_client_that_leaves_ends_the_computing_of_its_prompt(service, monkeypatch):
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def slow(ids, *rest):
        calls.append(len(ids))
        begun.set()
        assert go_on.wait(ENDED_S)
        return service._engine._forward(ids, *rest)

    runner = replace(service._engine._runner, forward=slow)
    monkeypatch.setattr(service._engine, "_runner", runner)

    async def leave_early():
        visitor = Visitor(service, body("y" * 100))
        visiting = asyncio.ensure_future(visitor.visit())
        await until(begun.is_set)
        visitor.leave()
        await visiting
        go_on.set()
        await until(lambda: not service._jobs.num_running)

    asyncio.run(leave_early())
    assert calls == [16]  # the first page of seven
    assert_all_free(service.stack)


def test_a_client_that_leaves_the_queue_makes_room_in_it(service, forward):
    async def leave_the_queue():
        async with client_of(service) as client:
            with forward:
                first = asyncio.ensure_future(client.post("/v1/completions", json=body("a")))
                await until(lambda: service._jobs.num_running == 1)
                visitor = Visitor(service, body("b"))
                visiting = asyncio.ensure_future(visitor.visit())
                await until(lambda: service._jobs.num_waiting == 1)
                visitor.leave()
                await visiting
                assert service._jobs.num_waiting == 0
            return (await first).status_code

    assert asyncio.run(leave_the_queue()) == 200


def test_answers_that_a_stop_cuts_off_say_so():
    service = open_service()

    async def stop():
        async with client_of(service) as client:
            asked = [body("a", stream=True, max_tokens=2000), body("b", stream=True)]
            posts = [client.post("/v1/completions", json=one) for one in asked]
            answers = [asyncio.ensure_future(post) for post in posts]
            await until(lambda: service._jobs.num_waiting == 1)
            await asyncio.to_thread(service.close)
            return [events(answer.text)[-1] for answer in await asyncio.gather(*answers)]

    told = asyncio.run(stop())
    assert [event["error"]["code"] for event in told] == ["stopping"] * 2


@pytest.mark.slow
def test_two_hundred_requests_at_once_over_twenty_prefixes_all_get_their_answer():
    service = Service(settings(*TINY, "store=memory"))
    prompts = [f"{n % 20:02} " * 60 + f"and then {n}" for n in range(200)]

    async def crowd():
        async with client_of(service) as client:
            asked = [client.post("/v1/completions", json=body(prompt)) for prompt in prompts]
            return await asyncio.gather(*asked)

    try:
        answers = asyncio.run(crowd())
        assert {answer.status_code for answer in answers} == {200}
        assert sum(cached(answer.json()) for answer in answers) >= 128 * 100
        alone = [asyncio.run(one(service, prompt)) for prompt in prompts[:20]]
        assert alone == [answer.json()["choices"] for answer in answers[:20]]
        assert_all_free(service.stack)
    finally:
        service.close()


async def one(service, prompt):
    async with client_of(service) as client:
        return (await client.post("/v1/completions", json=body(prompt))).json()["choices"]
