"""Requests wait for a thread to answer them, and their tokens come back into the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor

from composer.engines.transformers import Generated, Stream


class BusyError(Exception):
    """As many requests wait as may."""


class Job:
    """One answer under way: iterate over its tokens in the event loop that asked for it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[int | BaseException | None] = asyncio.Queue()
        self._future: Future[None] | None = None

    @property
    def result(self) -> Generated:
        """What there is so far."""
        return self._stream.result

    def start(self, pool: ThreadPoolExecutor, when_done: Callable[[], None]) -> None:
        """Compute on a thread of the pool, as soon as one is free."""
        self._future = pool.submit(self._run)
        self._future.add_done_callback(lambda _: when_done())

    def cancel(self) -> None:
        """Compute no further token. Idempotent."""
        self._stream.close()
        if self._future is not None and self._future.cancel():
            self._tell(None)  # it had not begun

    async def tokens(self) -> AsyncIterator[int]:
        """Each token as it comes.

        Raises:
            Exception: What computing it raised.
        """
        while (arrived := await self._arrived.get()) is not None:
            if isinstance(arrived, BaseException):
                raise arrived
            yield arrived

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for token in self._stream:
                self._tell(token)
        except BaseException as error:
            end = error  # raised where the tokens are awaited
        self._tell(end)

    def _tell(self, what: int | BaseException | None) -> None:
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, what)


class Jobs:
    """Answers some requests at a time, while a bounded number of others waits.

    The threads overlap: while one reads from storage, another computes. The engine lets one of
    them compute at a time.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self._running, self._most = running, running + waiting
        self._pool = ThreadPoolExecutor(running, "answer")
        self._jobs: set[Job] = set()

    @property
    def num_running(self) -> int:
        return min(len(self._jobs), self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._jobs) - self.num_running

    def start(self, stream: Stream) -> Job:
        """Answer a request as soon as a thread is free.

        Raises:
            BusyError: Too many others wait.
        """
        if len(self._jobs) >= self._most:
            raise BusyError
        job = Job(stream)
        self._jobs.add(job)
        job.start(self._pool, lambda: self._jobs.discard(job))
        return job

    def close(self) -> None:
        """End what is under way, and return when no thread computes any more. Idempotent."""
        for job in list(self._jobs):
            job.cancel()
        self._pool.shutdown()
