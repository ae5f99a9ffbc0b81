"""Processes that answer on one port, each with a model and a stack of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from threading import Thread

import torch
import uvicorn

from composer.errors import ComposerError
from serving.app import make_app
from serving.service import Service
from serving.settings import Settings

log = logging.getLogger(__name__)
_SPAWN = multiprocessing.get_context("spawn")  # a fork would share clients of the store


def serve(settings: Settings) -> int:
    """Answer requests until a signal ends this process; its exit code.

    Raises:
        ComposerError: A worker cannot start, where there is only one.
    """
    server = settings.server
    if server.workers == 1:
        with _bound(server.host, [server.port]) as sockets:
            work(settings, 0, sockets, None)
            return 0
    own = range(server.port + 1, server.port + 1 + server.workers)
    with _bound(server.host, [server.port, *own]) as sockets:
        return Workers(settings, sockets).run()


def work(settings: Settings, index: int, sockets: list[socket.socket], ready: Event | None) -> None:
    """Be one worker: load everything, and then answer what comes to the sockets."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    service = Service(settings, index)
    try:
        log.info("%s answers at %s", service.name, _url(sockets[0]))
        if ready is not None:
            ready.set()
        config = uvicorn.Config(
            make_app(service),
            log_level="warning",
            timeout_graceful_shutdown=max(1, round(settings.server.stop_s)),
        )
        uvicorn.Server(config).run(sockets)  # ends with the signal that it ended for
    finally:
        service.close()


class Workers:
    """Starts workers, and starts those again that end before they are told to."""

    def __init__(self, settings: Settings, sockets: Sequence[socket.socket]) -> None:
        """``sockets``: the one that all listen on, and then one of each."""
        self._settings, self._sockets = settings, sockets
        self._workers: dict[int, tuple[SpawnProcess, Event]] = {}
        self._stopping = False

    def run(self) -> int:
        """Return when all have ended, with the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        for index in range(self._settings.server.workers):
            self._start(index)
        code = 0
        while self._workers:
            wait([process.sentinel for process, _ in self._workers.values()])
            for index, (process, ready) in list(self._workers.items()):
                if process.is_alive():
                    continue
                process.join()
                del self._workers[index]
                if self._stopping:
                    continue
                if ready.is_set():
                    log.warning("worker %d ended with code %s", index, process.exitcode)
                    self._start(index)
                else:
                    code = process.exitcode or 1
                    self._stop()
        return code

    def _start(self, index: int) -> None:
        ready = _SPAWN.Event()
        sockets = [self._sockets[0], self._sockets[1 + index]]
        process = _SPAWN.Process(target=_work, args=(self._settings, index, sockets, ready))
        process.start()
        self._workers[index] = process, ready
        if self._stopping:  # told so meanwhile
            process.terminate()

    def _stop(self) -> None:
        self._stopping = True
        for process, _ in list(self._workers.values()):
            process.terminate()


def _work(settings: Settings, index: int, sockets: list[socket.socket], ready: Event) -> None:
    """A worker in a process of its own, which ends with the one that started it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // settings.server.workers))
    try:
        work(settings, index, sockets, ready)
    except ComposerError as error:
        print(f"serve: error: {error}", file=sys.stderr)
        sys.exit(2)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _leave(*_: object) -> None:
    sys.exit(0)


@contextmanager
def _bound(host: str, ports: Sequence[int]) -> Iterator[list[socket.socket]]:
    """Sockets that have their ports, and refuse connections until a worker listens."""
    sockets: list[socket.socket] = []
    try:
        for port in ports:
            sockets.append(one := socket.socket(_family(host)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((host, port))
            except OSError as error:
                sys.exit(f"serve: error: cannot listen on {host}:{port}: {error.strerror}")
        yield sockets
    finally:
        for one in sockets:
            one.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
