"""Work that is tried again, ever more rarely, until nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread, current_thread

FIRST_S, MOST_S = 0.25, 10.0


class Retry:
    """A thread that lives only while there is something to try again.

    Args:
        work: Tries; True: something is left.
        note: Told of what a try raises, after which there are others.
        first_s: Pause before the first try; it doubles each time,
        most_s: up to this one.
    """

    def __init__(
        self,
        work: Callable[[], bool],
        note: Callable[[Exception], None],
        *,
        first_s: float = FIRST_S,
        most_s: float = MOST_S,
    ) -> None:
        self._work, self._note = work, note
        self._first_s, self._most_s = first_s, most_s
        self._changed = Condition()
        self._thread: Thread | None = None
        self._wanted = self._closed = False

    @property
    def running(self) -> bool:
        with self._changed:
            return self._thread is not None

    def wake(self) -> None:
        """There is something to try again."""
        with self._changed:
            self._wanted = True
            if self._thread is None and not self._closed:
                self._thread = Thread(target=self._run, name="kvpool-retry", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Try no more; returns when the last try is over. Idempotent."""
        with self._changed:
            self._closed, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        pause_s = self._first_s
        try:
            while self._pause(pause_s):
                if self._try():
                    self._wanted = True
                pause_s = min(2 * pause_s, self._most_s)
        finally:
            with self._changed:
                if self._thread is current_thread():
                    self._thread = None

    def _try(self) -> bool:
        try:
            return self._work()
        except Exception as error:
            self._note(error)
            return True

    def _pause(self, pause_s: float) -> bool:
        """Wait; False: there is nothing to do any more."""
        with self._changed:
            if not self._wanted:
                self._thread = None  # whoever wakes it from now on starts another
                return False
            self._wanted = False
            self._changed.wait_for(lambda: self._closed, pause_s)
            return not self._closed
