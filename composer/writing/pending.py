"""Jobs on the workers: how many bytes they have in hand, and what they raised."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from threading import Condition, Lock

from composer.counters import Counters

log = logging.getLogger(__name__)
Submit = Callable[[Callable[[], None]], Future[None]]


class Pending:
    """What was started and has not ended.

    What a job raises is counted, and the first of it kept until ``drain`` raises it.
    """

    def __init__(self, submit: Submit, counters: Counters, most_bytes: int) -> None:
        self._submit, self._counters, self._most_bytes = submit, counters, most_bytes
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._futures: set[Future[None]] = set()
        self._num_bytes = 0
        self._error: Exception | None = None

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return self._num_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes more may be in hand; one job may at any time."""
        with self._lock:
            return self._has_room(num_bytes)

    def wait_for_room(self, num_bytes: int, wait_s: float) -> bool:
        """Wait until ``has_room``, at most ``wait_s``; whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room(num_bytes), wait_s)

    def begin(self, num_bytes: int) -> None:
        """So many bytes are in hand from now on."""
        with self._lock:
            self._num_bytes += num_bytes

    def end(self, num_bytes: int) -> None:
        """They are no longer."""
        with self._changed:
            self._num_bytes -= num_bytes
            self._changed.notify_all()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """``run`` a job on a worker."""
        future = self._submit(partial(self.run, job))
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(self._finished)
        return future

    def run(self, job: Callable[[], None], num_bytes: int = 0) -> None:
        """Run a job here, which had so many bytes in hand; ``drain`` raises what it raises."""
        try:
            job()
        except Exception as error:
            self.note(error)
        finally:
            if num_bytes:
                self.end(num_bytes)

    def note(self, error: Exception) -> None:
        """Something raised this."""
        log.error("a job failed: %s: %s", type(error).__name__, error)
        self._counters.add("jobs_failed")
        with self._lock:
            self._error = self._error or error

    def settle(self, wait_s: float | None) -> bool:
        """Wait for what was started; False when time ran out."""
        with self._lock:
            running = set(self._futures)
        return not wait(running, wait_s).not_done

    def drain(self, wait_s: float | None = None) -> bool:
        """As ``settle``, but raises what a job raised since the last time."""
        settled = self.settle(wait_s)
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error
        return settled

    def _has_room(self, num_bytes: int) -> bool:
        return not self._num_bytes or self._num_bytes + num_bytes <= self._most_bytes

    def _finished(self, future: Future[None]) -> None:
        with self._lock:
            self._futures.discard(future)
