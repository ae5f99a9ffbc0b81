"""Processes of the serving example: what they share, and what becomes of them when some die."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import contextmanager

import psutil
import pytest

from composer.backends.mooncake_store import EmbeddedStore
from tests.serve_tools import TINY, body, cached, repeated, series, serving, text_of

PROMPT = "What one process has computed another one need not compute again. " * 12  # 792 bytes
SEGMENT_BYTES = 1 << 28
SLOTS = 792 // 16 + 792 // 64 + 1  # pages, checkpoints, and that at the end
pytestmark = [pytest.mark.slow, pytest.mark.mooncake]


@pytest.fixture(scope="module")
def store():
    """A master and a holder, which nobody starts again."""
    with EmbeddedStore(SEGMENT_BYTES, holder=True, restart=False) as store:
        yield store


@pytest.fixture
def at(store):
    backend = {"address": store.address, "metrics_address": store.metrics_address}
    return [
        *TINY,
        "store=mooncake",
        "cache.backend.rpc_timeout_s=1",
        *(f"cache.backend.{name}={value}" for name, value in backend.items()),
    ]


def by_tier(answer):
    return answer["usage"]["prompt_tokens_details"]["by_tier"]


@contextmanager
def telling(server, prompt):
    """A long answer whose first piece has come: the rest of its text, and why it ended."""
    asked = body(prompt, max_tokens=300, stream=True)
    with server.client.stream("POST", "/v1/completions", json=asked) as answer:
        lines = answer.iter_lines()
        said = [next(lines)]

        def rest():
            said.extend(lines)
            assert said[-2:] == ["data: [DONE]", ""]
            told = [json.loads(line[6:]) for line in said[:-2] if line]
            return text_of(told), told[-1]["choices"][0]["finish_reason"]

        yield rest


def test_a_second_server_answers_from_the_firsts_pages_and_outlives_the_master(tmp_path, store, at):
    with serving(tmp_path, *at) as first:
        cold = first.wait().ask(PROMPT, max_tokens=32)
        with telling(first, "other " + PROMPT) as rest:
            first.process.terminate()  # a running answer ends before its server does
            other_cold = rest()
        assert first.process.wait(60) == 0
    with serving(tmp_path, *at) as second:
        warm = second.wait().ask(PROMPT, max_tokens=32)
        assert cached(cold) == 0
        assert by_tier(warm) == {"device": 0, "host": 0, "storage": repeated(PROMPT)}
        assert warm["choices"] == cold["choices"]
        with telling(second, "other " + PROMPT) as rest:
            os.kill(store.pids["master"], signal.SIGKILL)
            assert rest() == other_cold
        again = second.ask(PROMPT, max_tokens=32)  # from its own tiers
        fresh = second.ask("new " + PROMPT, max_tokens=32)  # a miss, and no error
        assert again["choices"] == warm["choices"]
        assert (cached(again), cached(fresh)) == (repeated(PROMPT), 0)
        assert second.stop() == 0


def test_workers_share_a_port_and_a_store_and_are_started_again(tmp_path):
    shared = [*TINY, "server.workers=2", f"cache.backend.shared=test-serve-{os.getpid()}"]
    shared += ["cache.backend.segment=256MiB"]
    with serving(tmp_path, *shared, ports=3) as server:
        each = server.port + 1, server.port + 2
        server.wait(*each)
        with server.client_of(each[0]) as one, server.client_of(each[1]) as other:
            cold = one.post("/v1/completions", json=body(PROMPT)).json()
            published(one)
            warm = other.post("/v1/completions", json=body(PROMPT)).json()
            told = [client.get("/metrics").text for client in (one, other)]
        assert (cached(cold), by_tier(warm)["storage"]) == (0, repeated(PROMPT))
        assert warm["choices"] == cold["choices"]
        for number, text in enumerate(told):
            (labels,) = series(text, "kvpool_plan_info")
            assert f'worker="{number}"' in labels

        children = workers_of(server)
        children[0].kill()
        children[0].wait(30)
        server.wait(*each)
        assert server.ask(PROMPT)["choices"] == cold["choices"]
        everyone = workers_of(server)
        assert len(everyone) == 2
        assert server.stop() == 0
        assert not any(child.is_running() for child in everyone)


def published(client):
    """Return when all that a worker has computed is in the store."""
    end = time.monotonic() + 30
    while True:
        text = client.get("/metrics").text
        if sum(series(text, "kvpool_slots_written_total").values()) >= SLOTS:
            return
        assert time.monotonic() < end, text
        time.sleep(0.05)


def workers_of(server):
    """Processes that answer: those with a model, and so with much memory."""
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
