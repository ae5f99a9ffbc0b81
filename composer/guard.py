"""The one way to a storage backend: what goes wrong there is counted, logged, and a miss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar

from composer.breaker import Breaker
from composer.counters import Counters
from composer.errors import InvariantError
from composer.storage import CallTimeoutError, StorageBackend, TransferError
from composer.transfer import Moved

log = logging.getLogger(__name__)
T = TypeVar("T")
Late = Callable[[Future[Any]], None]
MOVING = ("put", "get")


class Guard:
    """Calls a backend, but spares one that does not answer.

    Attributes:
        breaker: Decides when a store that does not answer is asked again.
        transfer_breaker: The same for data, of a store that answers and moves none.
        longest_s: Longest call so far, by name.
    """

    def __init__(self, counters: Counters) -> None:
        self.breaker, self.transfer_breaker = Breaker(), Breaker()
        self.longest_s: dict[str, float] = {}
        self._counters, self._lock = counters, Lock()

    def renew(self) -> None:
        """There is another backend, of which nothing bad is known."""
        self.breaker.succeeded()
        self.transfer_breaker.succeeded()

    def call(self, name: str, call: Callable[[], T], late: Late | None = None) -> T | None:
        """The answer of a call; None: there is none.

        Args:
            late: Told of a call that was given up, with what is done when the call ends.
        """
        if not self._allows(name):
            self._counters.add(f"backend_spared.{name}")
            return None
        begin = perf_counter()
        try:
            answer = call()
        except InvariantError:
            raise
        except Exception as error:
            self._failed(name, error, late)
            return None
        finally:
            self._note(name, perf_counter() - begin)
        self.breaker.succeeded()
        if name in MOVING:
            self.transfer_breaker.succeeded()
        return answer

    def move(
        self, moved: Moved, name: str, count: int, call: Callable[[], T], late: Late
    ) -> T | None:
        """As ``call``, for ``count`` objects; its time counts in ``moved``."""
        begin = perf_counter()
        answer = self.call(name, call, late)
        moved.seconds += perf_counter() - begin
        if answer is None:
            self._counters.add(f"backend_failed.{name}_objects", count)
        return answer

    def _allows(self, name: str) -> bool:
        # The transfers' first: a probe that the store's breaker lets through must be made.
        if name in MOVING and not self.transfer_breaker.allows():
            return False
        return self.breaker.allows()

    def _failed(self, name: str, error: Exception, late: Late | None) -> None:
        if isinstance(error, TransferError):
            self.breaker.succeeded()
            self.transfer_breaker.failed()
        else:
            self.breaker.failed()
        if isinstance(error, CallTimeoutError):
            self._counters.add(f"backend_late.{name}")
            if late is not None:
                late(error.ended)
        self._counters.add(f"backend_failed.{name}")
        log.warning("storage %s failed: %s: %s", name, type(error).__name__, str(error))

    def _note(self, name: str, seconds: float) -> None:
        if seconds > self.longest_s.get(name, 0.0):
            with self._lock:
                self.longest_s[name] = max(self.longest_s.get(name, 0.0), seconds)


def closed(backend: StorageBackend) -> bool:
    """Close a backend. False: it complains; whoever ends a stack could do nothing about it."""
    try:
        backend.close()
    except InvariantError:
        raise
    except Exception as error:
        log.warning("storage close failed: %s: %s", type(error).__name__, error)
        return False
    return True
