"""Jobs on the workers: how many bytes they have in hand, and what they raised."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Condition

Submit = Callable[[Callable[[], None]], Future[None]]


class Pending:
    """What was started and has not ended."""

    def __init__(self, submit: Submit, most_bytes: int) -> None:
        self._submit, self._most_bytes = submit, most_bytes
        self._changed = Condition()
        self._futures: set[Future[None]] = set()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        with self._changed:
            return self._num_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes more may be in hand; one job may at any time."""
        with self._changed:
            return self._has_room(num_bytes)

    def wait_for_room(self, num_bytes: int, wait_s: float) -> bool:
        """Wait until ``has_room``, at most ``wait_s``; whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room(num_bytes), wait_s)

    def begin(self, num_bytes: int) -> None:
        """So many bytes are in hand from now on."""
        with self._changed:
            self._num_bytes += num_bytes

    def end(self, num_bytes: int) -> None:
        """They are no longer."""
        with self._changed:
            self._num_bytes -= num_bytes
            self._changed.notify_all()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Run a job on a worker; ``drain`` raises what it raises."""
        future = self._submit(job)
        with self._changed:
            self._futures.add(future)
        future.add_done_callback(self._finished)
        return future

    def settle(self, wait_s: float | None) -> bool:
        """Wait for what was started; False when time ran out."""
        with self._changed:
            running = set(self._futures)
        return not wait(running, wait_s).not_done

    def drain(self, wait_s: float | None = None) -> bool:
        """As ``settle``, but raises what a job raised."""
        settled = self.settle(wait_s)
        with self._changed:
            done = {one for one in self._futures if one.done()}
            self._futures -= done
        for future in done:
            future.result()
        return settled

    def _has_room(self, num_bytes: int) -> bool:
        return not self._num_bytes or self._num_bytes + num_bytes <= self._most_bytes

    def _finished(self, future: Future[None]) -> None:
        if future.exception() is None:  # others stay, for ``drain`` to raise
            with self._changed:
                self._futures.discard(future)
