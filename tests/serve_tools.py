"""What tests of the serving example share: its modules, settings, requests, and processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
from hydra import compose, initialize_config_dir
from hydra.core.singleton import Singleton

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from serve import read  # noqa: E402  (its place was not known before; registers the schema)
from serving.app import make_app  # noqa: E402
from serving.service import Service  # noqa: E402

__all__ = ["EXAMPLES", "Service", "make_app"]

START_S = 200.0
PAGE = 16
TINY = [  # the small model, smaller
    *(
        f"model.config.{field}"
        for field in (
            "hidden_size=32", "intermediate_size=32", "num_attention_heads=2", "head_dim=16",
            "num_key_value_heads=1", "linear_num_key_heads=1", "linear_num_value_heads=2",
            "linear_key_head_dim=16", "linear_value_head_dim=16",
        )
    ),
    f"cache.page_size={PAGE}", "cache.checkpoint_tokens=64",
    "cache.device.memory=8MiB", "cache.host.memory=8MiB",
]  # fmt: skip


def settings(*overrides):
    """The launcher's settings, as Hydra composes them."""
    before = Singleton.get_state()
    try:
        with initialize_config_dir(str(EXAMPLES / "conf"), version_base="1.3"):
            return read(compose("config", overrides=list(overrides)))
    finally:
        Singleton.set_state(before)


def body(prompt, **more):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 4, **more}


def events(text):
    """The events of a stream, without the one that ends it."""
    lines = text.strip().split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def text_of(told):
    return "".join(choice["text"] for event in told for choice in event["choices"])


def repeated(prompt):
    """Tokens restored of a prompt that was answered before: all whole pages but its end."""
    return (len(prompt) - 1) // PAGE * PAGE


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def series(text, name):
    """Values of a series by its labels, as they stand."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith(f"{name}{{"))
    return {labels.removeprefix(name): float(value) for labels, _, value in lines}


def free_ports(number):
    """The first of some free ports in a row."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
        if all(_is_free(port + more) for more in range(number)):
            return port


def _is_free(port):
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Server:
    """A process of the launcher, and a client of it."""

    def __init__(self, folder, *overrides, ports=1):
        self.port = free_ports(ports)
        self.log = folder / f"serve-{self.port}.log"
        command = [
            sys.executable,
            str(EXAMPLES / "serve.py"),
            f"server.port={self.port}",
            *overrides,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.client = self.client_of(self.port)

    @staticmethod
    def client_of(port):
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def wait(self, *ports):
        """Return when it answers on its ports."""
        end = time.monotonic() + START_S
        for port in ports or (self.port,):
            with self.client_of(port) as client:
                while True:
                    assert self.process.poll() is None, self.log.read_text()
                    assert time.monotonic() < end, self.log.read_text()
                    try:
                        client.get("/health").raise_for_status()
                        break
                    except httpx.TransportError:
                        time.sleep(0.1)
        return self

    def ask(self, prompt, **more):
        answer = self.client.post("/v1/completions", json=body(prompt, **more))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stop(self):
        """End it as an operator does; its exit code."""
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def serving(folder, *overrides, ports=1):
    """A server process, which does not outlive the block."""
    server = Server(folder, *overrides, ports=ports)
    try:
        with server.client:
            yield server
    finally:
        if server.process.poll() is None:
            server.stop()
