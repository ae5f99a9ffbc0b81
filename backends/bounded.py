"""Calls that cannot be cancelled, under a deadline: a late one is left behind, on its thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import SimpleQueue
from typing import Any, TypeVar

from composer.errors import BackendError
from composer.storage import CallTimeoutError

MOST_LATE = 32  # calls left behind at once; further ones are refused
T = TypeVar("T")


class GivenUpError(BackendError):
    """Nobody waits for this work any more."""


class Deadline:
    """The moment at which a call is given up."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """End work that nobody waits for any more.

        Raises:
            GivenUpError: The moment has come.
        """
        if time.monotonic() >= self._end:
            raise GivenUpError("the call was given up")


class Bounded:
    """Runs calls on threads of its own, which never keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._late: set[Future[Any]] = set()

    @property
    def num_late(self) -> int:
        """Calls that were given up and have not ended."""
        with self._lock:
            self._late = {call for call in self._late if not call.done()}
            return len(self._late)

    def call(self, what: str, timeout_s: float, work: Callable[[Deadline], T]) -> T:
        """The answer of ``work``, or what it raises.

        Raises:
            CallTimeoutError: It did not end within ``timeout_s``, or ended itself at its deadline.
            BackendError: Too many calls are late already.
        """
        if self._late and self.num_late >= MOST_LATE:
            raise BackendError(f"{MOST_LATE} calls of the {self._name} have not ended")
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self._name, self._rest)
        future: Future[T] = Future()
        worker.jobs.put((future, work, Deadline(timeout_s)))
        try:
            return future.result(timeout_s)
        except (FutureTimeoutError, GivenUpError):
            # Its own answer counts if it ended just now, and an error that it raised itself; but
            # work that saw the deadline before the caller did is as late as any other.
            if future.done() and not isinstance(future.exception(), GivenUpError):
                return future.result()
        with self._lock:
            self._late.add(future)
        message = f"no end of {what} of the {self._name} within {timeout_s:g} s"
        raise CallTimeoutError(message, future)

    def close(self) -> None:
        """End the threads that do nothing; late calls end theirs by themselves."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.jobs.put(None)

    def _rest(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)


class _Worker:
    """A thread that takes one job after another."""

    def __init__(self, name: str, rest: Callable[[_Worker], None]) -> None:
        self.jobs: SimpleQueue[Any] = SimpleQueue()
        self._rest = rest
        threading.Thread(target=self._run, name=f"kvpool-{name}", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            future, work, deadline = job
            try:
                answer = work(deadline)
            except BaseException as error:
                self._rest(self)
                future.set_exception(error)
            else:
                self._rest(self)
                future.set_result(answer)
            del job, future, work  # nothing is kept alive while there is nothing to do
